/* Call a model's DLL on Windows, without a C library: inputs from standard input, outputs to standard output.
 * Files beside it: m.safetensors, its weights; foreign and short, others of the same and of another length. */
#include "m.h"

#define IMPORT __declspec(dllimport)
IMPORT void *LoadLibraryA(const char *);
IMPORT void *GetProcAddress(void *, const char *);
IMPORT void *GetStdHandle(uint32_t);
IMPORT int ReadFile(void *, void *, uint32_t, uint32_t *, void *);
IMPORT int WriteFile(void *, const void *, uint32_t, uint32_t *, void *);
IMPORT int DeleteFileA(const char *);
IMPORT void ExitProcess(uint32_t);

#define GET(f) __typeof__(m_##f) *f = (__typeof__(m_##f) *)GetProcAddress(dll, "m_" #f)
#define CHECK(status, code) do { if (status) ExitProcess(code); } while (0)
static char input[IN_BYTES], output[OUT_BYTES];

int mainCRTStartup(void) {
  void *dll = LoadLibraryA("m.dll"), *from = GetStdHandle((uint32_t)-10), *to = GetStdHandle((uint32_t)-11);
  CHECK(!dll, 2);
  GET(info);
  GET(create);
  GET(run);
  GET(destroy);
  const void *weights = 0, *in[1] = {input};
  void *out[1] = {output};
  m_model *model;
  uint32_t n;
  for (uint32_t at = 0; at < IN_BYTES; at += n) CHECK(!ReadFile(from, input + at, IN_BYTES - at, &n, 0) || !n, 3);
  CHECK(info()->max_threads != THREADS, 4);
#ifdef WEIGHTS
  GET(map_weights);
  GET(unmap_weights);
  CHECK(TW_STATUS_KIND(map_weights("nowhere", &weights)) != TW_ERROR_WEIGHTS || weights, 8);
  CHECK(TW_STATUS_KIND(map_weights("short", &weights)) != TW_ERROR_WEIGHTS || weights, 9);
  CHECK(TW_STATUS_KIND(map_weights("foreign", &weights)) != TW_ERROR_WEIGHTS || weights, 10);
  CHECK(TW_STATUS_KIND(map_weights(0, &weights)) != TW_ERROR_NULL, 11);
  const void *again;
  CHECK(map_weights("m.safetensors", &again), 12);
  CHECK(map_weights("m.safetensors", &weights) || weights == again, 13);
  unmap_weights(again);
  unmap_weights(0);
#endif
  CHECK(create(&model, 0, M_WORKSPACE_BYTES, weights, 0), 5);
  for (int k = 0; k < 20; k++) { /* as often as it takes for threads to fall asleep and to be woken */
    for (int i = 0; i < OUT_BYTES; i++) ((volatile char *)output)[i] = 0;
    CHECK(run(model, 0, in, out), 6);
  }
  destroy(model);
#ifdef WEIGHTS
  unmap_weights(weights);
  CHECK(!DeleteFileA("m.safetensors"), 14); /* which Windows refuses while anybody has it open or mapped */
#endif
  CHECK(!WriteFile(to, output, OUT_BYTES, &n, 0) || n != OUT_BYTES, 7);
  ExitProcess(0);
  return 0;
}

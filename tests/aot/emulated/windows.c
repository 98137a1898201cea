/* Call a model's DLL on Windows, without a C library: inputs from standard input, outputs to standard output. */
#include "m.h"

#define IMPORT __declspec(dllimport)
IMPORT void *LoadLibraryA(const char *);
IMPORT void *GetProcAddress(void *, const char *);
IMPORT void *GetStdHandle(uint32_t);
IMPORT int ReadFile(void *, void *, uint32_t, uint32_t *, void *);
IMPORT int WriteFile(void *, const void *, uint32_t, uint32_t *, void *);
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
  const void *in[1] = {input};
  void *out[1] = {output};
  m_model *model;
  uint32_t n;
  for (uint32_t at = 0; at < IN_BYTES; at += n) CHECK(!ReadFile(from, input + at, IN_BYTES - at, &n, 0) || !n, 3);
  CHECK(info()->max_threads != THREADS, 4);
  CHECK(create(&model, 0, M_WORKSPACE_BYTES, 0, 0), 5);
  for (int k = 0; k < 20; k++) { /* as often as it takes for threads to fall asleep and to be woken */
    for (int i = 0; i < OUT_BYTES; i++) ((volatile char *)output)[i] = 0;
    CHECK(run(model, 0, in, out), 6);
  }
  destroy(model);
  CHECK(!WriteFile(to, output, OUT_BYTES, &n, 0) || n != OUT_BYTES, 7);
  ExitProcess(0);
  return 0;
}

/* Runs many exported models in one process, on any system: a buffer of requests in, a buffer of answers out.
 *
 * A request: the model's number, the values of its symbols (int64 each), its inputs' elements. An answer: a status, and
 * for each output its shape (int64 each) and elements. Models are listed in models.h, which the harness writes. A model
 * that takes more stack than its header says gets the status TOO_DEEP. */
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "models.h"

#ifndef REQUEST_BYTES
#define REQUEST_BYTES (24 << 20)
#define ANSWER_BYTES (8 << 20)
#define MEMORY_BYTES (16 << 20)
#endif

static const int BYTES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; /* by dtype */
_Alignas(64) unsigned char tw_request[REQUEST_BYTES];
_Alignas(64) unsigned char tw_answer[ANSWER_BYTES];
static _Alignas(64) unsigned char memory[MEMORY_BYTES];

static int64_t bytes_of(const tw_tensor_info *t, const int64_t *shape) {
  int64_t n = BYTES[t->dtype];
  for (int d = 0; d < t->rank; d++) n *= shape[d];
  return n;
}

enum { TOO_DEEP = 1000, OWN_FRAME = 256, SPARE = 1024, HELPERS = 512 };

/* Run with the stack below painted, and look how much of the paint is left. What memcpy and the compiler's helpers
 * take is not in the header's number. WebAssembly's stack is a place like others, and not looked at. */
static __attribute__((noinline)) tw_status run_painted(const Model *m, void *handle, const int64_t *dims,
                                                       const void *const *inputs, void *const *outputs) {
#ifdef __wasm__
  return m->run(handle, dims, inputs, outputs);
#else
  volatile unsigned char *top = __builtin_frame_address(0);
  int64_t window = m->stack_bytes + OWN_FRAME + HELPERS + SPARE, left = 0;
  if (m->stack_bytes < 0) return m->run(handle, dims, inputs, outputs);
  for (int64_t k = window; k > OWN_FRAME; k--) top[-k] = 0xA5;
  tw_status status = m->run(handle, dims, inputs, outputs);
  while (left < window - OWN_FRAME && top[left - window] == 0xA5) left++;
  return status || left >= SPARE ? status : TOO_DEEP;
#endif
}

static int64_t run_one(const Model *m, const unsigned char **request, unsigned char **answer) {
  const tw_model_info *info = m->info();
  int64_t dims[64] = {0}, shape[64], bytes, used = 0;
  const void *inputs[64];
  void *outputs[64], *handle;
  memcpy(dims, *request, 8 * (size_t)info->n_symbols);
  *request += 8 * info->n_symbols;
  tw_status status = 0;
  for (int i = 0; i < info->n_inputs; i++) { /* to memory of its own: elements lie on multiples of their size */
    status = status ? status : m->input_shape(dims, i, shape);
    int64_t n = bytes_of(&info->inputs[i], shape);
    memcpy(memory + used, *request, (size_t)n);
    inputs[i] = memory + used;
    *request += n;
    used += (n + 64) & ~(int64_t)63;
  }
  for (int i = 0; i < info->n_outputs; i++) {
    status = status ? status : m->output_shape(dims, i, shape);
    outputs[i] = memory + used;
    used += (bytes_of(&info->outputs[i], shape) + 64) & ~(int64_t)63;
  }
  status = status ? status : m->workspace(dims, &bytes);
  if (!status && used + bytes > MEMORY_BYTES) return -1;
  memset(memory + used, 0xA5, (size_t)bytes);
  status = status ? status : m->create(&handle, memory + used, bytes, NULL, 1);
  status = status ? status : run_painted(m, handle, dims, inputs, outputs);
  for (int i = 0; !status && i < info->n_outputs; i++) {
    status = m->result_shape(handle, i, shape);
    size_t n = (size_t)bytes_of(&info->outputs[i], shape), rank = (size_t)info->outputs[i].rank;
    memcpy(*answer, shape, 8 * rank);
    memcpy(*answer + 8 * rank, outputs[i], n);
    *answer += 8 * rank + n;
  }
  if (!status) m->destroy(handle);
  return status;
}

/* The number of bytes answered to a request of n bytes. */
int32_t tw_answer_all(int32_t n) {
  const unsigned char *request = tw_request;
  unsigned char *answer = tw_answer;
  while (request < tw_request + n) {
    unsigned char *status = answer;
    int64_t model;
    memcpy(&model, request, 8);
    request += 8;
    answer += 8;
    int64_t result = run_one(&MODELS[model], &request, &answer);
    memcpy(status, &result, 8);
    if (result) break;
  }
  return (int32_t)(answer - tw_answer);
}

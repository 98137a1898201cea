/* layer: a compiled model.
 *
 * Written by Tilewright 0.1.0 for x86_64-unknown-linux-gnu, CPU x86-64.
 *
 * inputs:
 *   0  x: float32[batch][8]
 * outputs:
 *   0  y: float32[batch][4]
 * symbols, in the order of dims:
 *   0  batch: 1 to 64
 * working memory: 0 bytes, and 128 for the handle
 * weights: 192 bytes
 *
 * Use: bind (or fill in dims), workspace, create, run as often as you like, destroy. Link with layer.o, libc, libm and pthread.
 * A handle runs one call at a time. Any number of handles may run at once; they share code and weights.
 * Running allocates nothing. Results do not depend on the number of threads.
 */
#ifndef LAYER_H
#define LAYER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TILEWRIGHT_ABI_VERSION
#define TILEWRIGHT_ABI_VERSION 1

/* How a call ended: 0, or a kind in the low 8 bits and in the others a number of the model's own. */
typedef int32_t tw_status;
#define TW_STATUS_KIND(status) ((status) & 255)
#define TW_OK 0 /* done */
#define TW_ERROR_NULL 1 /* a pointer is NULL */
#define TW_ERROR_SHAPE 2 /* a size is not one that the model is compiled for */
#define TW_ERROR_MEMORY 3 /* there is too little memory */
#define TW_ERROR_ALIGNMENT 4 /* memory or weights are not aligned */
#define TW_ERROR_WEIGHTS 5 /* the weights are missing, or another model's */
#define TW_ERROR_INDEX 6 /* there is no input or output of that number */
#define TW_ERROR_RUN 7 /* the model's code reports a failure */
#define TW_ERROR_CPU 8 /* this CPU lacks instructions that the code uses */

/* Types of elements. Those narrower than a byte take a byte each. bool is 0 or 1 in a byte. */
#define TW_BOOL 1
#define TW_INT8 2
#define TW_INT16 3
#define TW_INT32 4
#define TW_INT64 5
#define TW_UINT8 6
#define TW_UINT16 7
#define TW_UINT32 8
#define TW_UINT64 9
#define TW_FLOAT16 10
#define TW_BFLOAT16 11
#define TW_FLOAT32 12
#define TW_FLOAT64 13
#define TW_FLOAT8_E4M3FN 14
#define TW_FLOAT8_E5M2 15
#define TW_FLOAT8_E4M3FNUZ 16
#define TW_FLOAT8_E5M2FNUZ 17
#define TW_FLOAT8_E8M0FNU 18
#define TW_FLOAT4_E2M1FN 19
#define TW_INT4 20
#define TW_UINT4 21
#define TW_INT2 22
#define TW_UINT2 23

typedef struct tw_tensor_info {
  const char *name;
  int32_t dtype; /* TW_FLOAT32, ... */
  int32_t rank;
  const int64_t *shape;    /* rank sizes, -1 where a size is symbolic */
  const char *const *dims; /* rank texts: numbers, or expressions over symbols such as "2*n + 1" */
} tw_tensor_info;

typedef struct tw_symbol_info {
  const char *name;
  int64_t lowest;
  int64_t highest; /* INT64_MAX where there is no limit */
} tw_symbol_info;

typedef struct tw_model_info {
  uint32_t abi_version;
  uint32_t struct_bytes; /* later versions may add fields at the end */
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_symbols;
  int32_t max_threads;
  const char *name;
  const char *compiler_version;
  const char *target;
  const char *cpu;
  const char *fingerprint; /* of the weights: a weights file belongs to the object with the same one */
  const tw_tensor_info *inputs;
  const tw_tensor_info *outputs;
  const tw_symbol_info *symbols;
  int64_t alignment;
  int64_t weights_bytes;
} tw_model_info;
#elif TILEWRIGHT_ABI_VERSION != 1
#error "two models were exported with different versions of the interface: export them again with one Tilewright"
#endif

#define LAYER_N_INPUTS 1
#define LAYER_N_OUTPUTS 1
#define LAYER_N_SYMBOLS 1
#define LAYER_ALIGNMENT 64
#define LAYER_WEIGHTS_BYTES 192
#define LAYER_INPUT_X 0
#define LAYER_OUTPUT_Y 0
#define LAYER_DIM_BATCH 0
#define LAYER_WORKSPACE_BYTES 128

typedef struct layer_model layer_model;

/* The facts above as data; never NULL. */
const tw_model_info *layer_info(void);

/* Sizes from shapes: shapes[i] are the sizes of input i (anything where it has none). Writes LAYER_N_SYMBOLS values
 * to dims, or refuses shapes that the model is not compiled for. */
tw_status layer_bind(const int64_t *const *shapes, int64_t *dims);

/* How many bytes layer_create needs for calls with these sizes. dims may be NULL where there are no symbols. */
tw_status layer_workspace(const int64_t *dims, int64_t *bytes);

/* The shape of an input, and of an output (the most that there can be, where the data decide). */
tw_status layer_input_shape(const int64_t *dims, int32_t index, int64_t *shape);
tw_status layer_output_shape(const int64_t *dims, int32_t index, int64_t *shape);

/* Make a handle in `memory`, `bytes` bytes that start on a multiple of 64 and stay yours,
 * or NULL for memory of malloc's.
 * `weights`: NULL: they are in the object.
 * `threads`: the most that a call uses, 0 for 2. */
tw_status layer_create(layer_model **model, void *memory, int64_t bytes, const void *weights, int32_t threads);

/* inputs and outputs: a pointer to each tensor's elements, densely packed, last dimension fastest, aligned as
 * the element type wants. Only an empty tensor's may be NULL. Outputs overlap nothing else. */
tw_status layer_run(layer_model *model, const int64_t *dims, const void *const *inputs, void *const *outputs);

/* An output's shape as the latest run left it: where the data decide, less than layer_output_shape says. */
tw_status layer_result_shape(const layer_model *model, int32_t index, int64_t *shape);

/* Free what create allocated, if anything. NULL is allowed. */
void layer_destroy(layer_model *model);

/* What a status means, in words; never NULL. */
const char *layer_status_text(tw_status status);

/* Call in a child process after fork() if the parent ran a model: threads do not survive a fork. */
void layer_after_fork(void);

#ifdef __cplusplus
}
#endif

#endif

/* Run any exported model: raw tensors from standard input, results to standard output. The symbols' values are arguments.
 *   cc -DMODEL=digits -include out/digits.h examples/aot/run.c out/digits.o -o run -lm -lpthread
 *   ./run 1 < image.bin > scores.bin */
#include <stdio.h>
#include <stdlib.h>

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define CALL(f) JOIN(MODEL, f)
static const int BYTES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; /* by dtype */

static void check(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s\n", CALL(status_text)(status));
  exit(1);
}

static size_t bytes_of(const tw_tensor_info *t, const int64_t *shape) {
  size_t n = BYTES[t->dtype];
  for (int d = 0; d < t->rank; d++) n *= (size_t)shape[d];
  return n;
}

int main(int argc, char **argv) {
  const tw_model_info *info = CALL(info)();
  int64_t dims[64] = {0}, shape[64], bytes;
  if (info->n_symbols > 64 || info->n_inputs > 256 || info->n_outputs > 256) return fprintf(stderr, "too many\n"), 1;
  for (int k = 0; k < info->n_symbols && k + 1 < argc; k++) dims[k] = atoll(argv[k + 1]);
  void *inputs[256], *outputs[256];
  for (int i = 0; i < info->n_inputs; i++) {
    check(CALL(input_shape)(dims, i, shape));
    size_t n = bytes_of(&info->inputs[i], shape);
    inputs[i] = malloc(n + 1);
    if (fread(inputs[i], 1, n, stdin) != n) return fprintf(stderr, "input %s is short\n", info->inputs[i].name), 1;
  }
  for (int i = 0; i < info->n_outputs; i++) {
    check(CALL(output_shape)(dims, i, shape));
    outputs[i] = malloc(bytes_of(&info->outputs[i], shape) + 1);
  }
  const void *weights = NULL;
#ifdef WEIGHTS
  check(CALL(map_weights)(WEIGHTS, &weights));
#endif
  JOIN(MODEL, model) *model;
  check(CALL(workspace)(dims, &bytes));
  check(CALL(create)(&model, NULL, bytes, weights, 0));
  check(CALL(run)(model, dims, (const void *const *)inputs, outputs));
  for (int i = 0; i < info->n_outputs; i++) {
    check(CALL(result_shape)(model, i, shape));
    fwrite(outputs[i], 1, bytes_of(&info->outputs[i], shape), stdout);
  }
  CALL(destroy)(model);
  return 0;
}

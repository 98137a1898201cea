/* Classify one digit. No files, no Python, no allocation of the model's: the memory is this program's.
 *   tilewright aot examples/digits/digits.onnx -o out --fix batch=1
 *   cc -Iout examples/aot/digits.c out/digits.o -o digits -lm -lpthread && ./digits */
#include "digits.h"
#include <stdio.h>

static _Alignas(DIGITS_ALIGNMENT) unsigned char memory[DIGITS_WORKSPACE_BYTES];

int main(void) {
  static const char *drawn[8] = {"  ####  ", " ##  ## ", "     ## ", "   ###  ", "     ## ", "      ##", " ##  ## ", "  ####  "};
  float image[64], scores[10];
  const void *inputs[DIGITS_N_INPUTS] = {image};
  void *outputs[DIGITS_N_OUTPUTS] = {scores};
  digits_model *model;
  int best = 0;
  for (int i = 0; i < 64; i++) image[i] = drawn[i / 8][i % 8] == '#' ? 16.0f : 0.0f;
  tw_status status = digits_create(&model, memory, sizeof memory, NULL, 1);
  if (status == TW_OK) status = digits_run(model, NULL, inputs, outputs);
  if (status != TW_OK) return printf("%s\n", digits_status_text(status)), 1;
  for (int k = 1; k < 10; k++) best = scores[k] > scores[best] ? k : best;
  printf("%d\n", best);
  digits_destroy(model);
  return 0;
}

/* The digit classifier as a WebAssembly module for page.html: an image, its scores, and a function between them.
 *   tilewright aot examples/digits/digits.onnx --fix batch=1 --target wasm32 -o out
 *   clang --target=wasm32 -O1 -ffreestanding -nostdlib -fno-builtin -Iout -Wl,--no-entry examples/aot/web/digits.c \
 *     out/digits.o -o examples/aot/web/digits.wasm
 * (or `python -m ziglang cc -target wasm32-freestanding` in clang's place) */
#include <stddef.h>
#include <stdint.h>

#include "digits.h"

#define EXPORT(name) __attribute__((export_name(name)))

static float image[64], scores[10];
static _Alignas(DIGITS_ALIGNMENT) unsigned char memory[DIGITS_WORKSPACE_BYTES];

void *memset(void *to, int byte, size_t n) {
  for (volatile unsigned char *p = to; n--;) *p++ = (unsigned char)byte;
  return to;
}

void *memcpy(void *to, const void *from, size_t n) {
  const unsigned char *q = from;
  for (volatile unsigned char *p = to; n--;) *p++ = *q++;
  return to;
}

/* Where to write 8 x 8 brightnesses from 0 to 16, and where to read ten scores. */
EXPORT("image") float *image_at(void) { return image; }
EXPORT("scores") float *scores_at(void) { return scores; }

/* The digit with the best score; a negative number is a status. */
EXPORT("classify") int32_t classify(void) {
  const void *inputs[DIGITS_N_INPUTS] = {image};
  void *outputs[DIGITS_N_OUTPUTS] = {scores};
  digits_model *model;
  tw_status status = digits_create(&model, memory, sizeof memory, NULL, 1);
  if (status == TW_OK) status = digits_run(model, NULL, inputs, outputs);
  if (status != TW_OK) return -status;
  int32_t best = 0;
  for (int32_t k = 1; k < 10; k++) best = scores[k] > scores[best] ? k : best;
  return best;
}

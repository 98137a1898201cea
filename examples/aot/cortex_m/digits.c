/* Classify one digit on a microcontroller: no operating system, no C library, no heap; weights stay in flash.
 *   tilewright aot examples/digits/digits.onnx --fix batch=1 --target cortex-m4 --optimize size -o out
 *   arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -O1 -ffreestanding -fno-builtin -fno-unwind-tables -nostdlib -Iout \
 *     -T examples/aot/cortex_m/board.ld examples/aot/cortex_m/digits.c out/digits.o -o digits.elf
 *   qemu-system-arm -M mps2-an386 -nographic -semihosting-config enable=on,target=native -kernel digits.elf
 * The only thing that knows QEMU is `host`, which prints; a product would use its serial port. */
#include <stddef.h>
#include <stdint.h>

#include "digits.h"

enum { PRINT = 0x04, EXIT = 0x18, STOPPED = 0x20026 };
extern unsigned char stack_top[], data_from[], data_start[], data_end[], bss_start[], bss_end[];
static _Alignas(DIGITS_ALIGNMENT) unsigned char memory[DIGITS_WORKSPACE_BYTES];

/* What the compiler may call in any program. */
void *memset(void *to, int byte, size_t n) {
  for (volatile unsigned char *p = to; n--;) *p++ = (unsigned char)byte;
  return to;
}

void *memcpy(void *to, const void *from, size_t n) {
  const unsigned char *q = from;
  for (volatile unsigned char *p = to; n--;) *p++ = *q++;
  return to;
}

static int32_t host(int32_t operation, const void *argument) {
  register int32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static int classify(const float *image) {
  float scores[10];
  const void *inputs[DIGITS_N_INPUTS] = {image};
  void *outputs[DIGITS_N_OUTPUTS] = {scores};
  digits_model *model;
  if (digits_create(&model, memory, sizeof memory, NULL, 1) || digits_run(model, NULL, inputs, outputs)) return -1;
  int best = 0;
  for (int k = 1; k < 10; k++) best = scores[k] > scores[best] ? k : best;
  return best;
}

__attribute__((noinline)) static void program(void) {
  static const char *drawn[8] = {"  ####  ", " ##  ## ", "     ## ", "   ###  ", "     ## ", "      ##", " ##  ## ", "  ####  "};
  float image[64];
  for (int i = 0; i < 64; i++) image[i] = drawn[i / 8][i % 8] == '#' ? 16.0f : 0.0f;
  char line[] = "?\n";
  int digit = classify(image);
  if (digit >= 0) line[0] = (char)('0' + digit);
  host(PRINT, line);
}

void start(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xF << 20; /* the floating-point unit is off after a reset */
  __asm__ volatile("dsb\n isb");
  memcpy(data_start, data_from, (size_t)(data_end - data_start));
  memset(bss_start, 0, (size_t)(bss_end - bss_start));
  program();
  host(EXIT, (void *)STOPPED);
}

static void fault(void) {
  for (;;) host(EXIT, (void *)1);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, (void *)start, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault};

/* Cortex-M under QEMU, without a C library: requests and answers are files of the host, by semihosting. */
#include <stddef.h>
#include <stdint.h>

enum { OPEN = 1, CLOSE = 2, WRITE = 5, READ = 6, EXIT = 0x18, STOPPED = 0x20026 };

extern unsigned char tw_request[], tw_answer[], stack_top[];
int32_t tw_answer_all(int32_t n);
void start(void);

static int32_t call(int32_t number, const void *arguments) {
  register int32_t r0 __asm__("r0") = number;
  register const void *r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static void fault(void) {
  for (;;) call(EXIT, (void *)1);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, (void *)start, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault};

void start(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xF << 20; /* the floating-point unit is off after a reset */
  __asm__ volatile("dsb\n isb");
  intptr_t open_in[] = {(intptr_t)"request.bin", 1, 11}, open_out[] = {(intptr_t)"answer.bin", 5, 10};
  intptr_t in = call(OPEN, open_in), read[] = {in, (intptr_t)tw_request, REQUEST_BYTES};
  int32_t n = REQUEST_BYTES - call(READ, read);
  intptr_t out = call(OPEN, open_out), write[] = {out, (intptr_t)tw_answer, tw_answer_all(n)};
  call(WRITE, write);
  call(CLOSE, &out);
  call(EXIT, (void *)STOPPED);
}

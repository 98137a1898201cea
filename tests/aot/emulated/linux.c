/* Linux without a C library: requests from standard input, answers to standard output. */
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, EXIT = 60 };
#elif defined(__arm__)
enum { READ = 3, WRITE = 4, EXIT = 1 };
#else /* AArch64, RISC-V */
enum { READ = 63, WRITE = 64, EXIT = 93 };
#endif

extern unsigned char tw_request[], tw_answer[];
int32_t tw_answer_all(int32_t n);

static long call(long number, long a, long b, long c) {
#if defined(__x86_64__)
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
#elif defined(__arm__)
  register long r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c, r7 __asm__("r7") = number;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r1), "r"(r2), "r"(r7) : "memory");
  return r0;
#elif defined(__aarch64__)
  register long x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x8 __asm__("x8") = number;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
  return x0;
#else
  register long a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c, a7 __asm__("a7") = number;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
  return a0;
#endif
}

int madvise(void *start, size_t n, int advice) { return (void)start, (void)n, (void)advice, 0; }
void *malloc(size_t n) { return (void)n, (void *)0; } /* models get memory from program.c */
void free(void *p) { (void)p; }

static const unsigned long *auxiliary; /* pairs behind the environment, where the program began */

unsigned long getauxval(unsigned long type) {
  for (const unsigned long *pair = auxiliary; *pair; pair += 2)
    if (*pair == type) return pair[1];
  return 0;
}

long syscall(long number, ...) { return (void)number, -1; } /* riscv_hwprobe: an older Linux */

void tw_main(const unsigned long *stack) {
  stack += *stack + 2;
  while (*stack++) {}
  auxiliary = stack;
  long n = 0, got;
  while ((got = call(READ, 0, (long)(tw_request + n), 1 << 20)) > 0) n += got;
  long size = tw_answer_all((int32_t)n);
  for (long at = 0; at < size && (got = call(WRITE, 1, (long)(tw_answer + at), size - at)) > 0;) at += got;
  call(EXIT, 0, 0, 0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call tw_main\n");
#elif defined(__arm__)
__asm__(".globl _start\n_start: mov r0, sp\n bl tw_main\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x0, sp\n bl tw_main\n");
#else
__asm__(".globl _start\n_start: .option push\n .option norelax\n la gp, __global_pointer$\n .option pop\n mv a0, sp\n call tw_main\n");
#endif

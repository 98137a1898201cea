/* What C compilers call by themselves, for programs without a C library. */
#include <stddef.h>

void *memset(void *to, int byte, size_t n) {
  volatile unsigned char *p = to;
  for (size_t i = 0; i < n; i++) p[i] = (unsigned char)byte;
  return to;
}

void *memcpy(void *to, const void *from, size_t n) {
  volatile unsigned char *p = to;
  const unsigned char *q = from;
  for (size_t i = 0; i < n; i++) p[i] = q[i];
  return to;
}

// NVIDIA's driver as far as a model calls it, on the host's memory: it prints what it is given.
// In: calls of cuda-bindings, which finds every function by cuGetProcAddress. Not its business: running kernels.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void *Handle;
typedef uint64_t Address;
enum { OUT_OF_MEMORY = 2, INVALID_PTX = 218, NOT_FOUND = 500, ERROR_LOG = 5, MAJOR = 75 };

Result cuInit(unsigned flags) { return 0; }
Result cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Result cuDeviceGetCount(int *n) { *n = 1; return 0; }
Result cuDeviceGet(int *device, int n) { *device = n; return 0; }
Result cuDeviceGetAttribute(int *value, int name, int device) { *value = name == MAJOR ? 9 : 0; return 0; }
Result cuDeviceGetName(char *name, int n, int device) { strncpy(name, "stub", n); return 0; }
Result cuDeviceTotalMem_v2(size_t *n, int device) { *n = (size_t)80 << 30; return 0; }
Result cuDevicePrimaryCtxRetain(Handle *context, int device) { *context = (Handle)0x11; return 0; }
Result cuCtxSetCurrent(Handle context) { printf("context %p\n", context); return 0; }

Result cuModuleLoadDataEx(Handle *module, const void *image, unsigned n, int *options, void **values) {
  *module = (Handle)0x22;
  if (strcmp(image, "bad")) return 0;
  for (unsigned k = 0; k < n; k++)
    if (options[k] == ERROR_LOG) strcpy(values[k], "line 1 is bad");
  return INVALID_PTX;
}
Result cuModuleUnload(Handle module) { printf("unload %p\n", module); return 0; }
Result cuModuleGetFunction(Handle *function, Handle module, const char *name) {
  printf("function %p %s\n", module, name);
  *function = (Handle)0x33;
  return 0;
}
Result cuFuncSetAttribute(Handle function, int name, int value) {
  printf("attribute %p %d %d\n", function, name, value);
  return 0;
}

Result cuMemAlloc_v2(Address *address, size_t n) {
  if (n >> 40) return OUT_OF_MEMORY;
  *address = (Address)aligned_alloc(256, (n + 255) / 256 * 256);
  return 0;
}
Result cuMemFree_v2(Address address) { free((void *)address); return 0; }
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t n, Handle stream) {
  memcpy((void *)to, from, n);
  return 0;
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t n, Handle stream) {
  memcpy(to, (void *)from, n);
  return 0;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, Handle stream) {
  memcpy((void *)to, (void *)from, n);
  return 0;
}

Result cuStreamCreate(Handle *stream, unsigned flags) {
  printf("stream %u\n", flags);
  *stream = (Handle)0x44;
  return 0;
}
Result cuStreamSynchronize(Handle stream) { printf("wait %p\n", stream); return 0; }
Result cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, Handle stream, void **arguments, void **extra) {
  printf("launch %p (%u, %u, %u) (%u, %u, %u) %u %p %llu %llu\n", function, gx, gy, gz, bx, by, bz, shared, stream,
         *(unsigned long long *)arguments[0], *(unsigned long long *)arguments[1]);
  return extra != 0;
}

Result cuStreamBeginCapture_v2(Handle stream, int mode) { printf("capture %p %d\n", stream, mode); return 0; }
Result cuStreamEndCapture(Handle stream, Handle *graph) { *graph = (Handle)0x55; return 0; }
Result cuGraphInstantiateWithFlags(Handle *ready, Handle graph, unsigned long long flags) {
  printf("graph %p\n", graph);
  *ready = (Handle)0x66;
  return 0;
}
Result cuGraphDestroy(Handle graph) { printf("destroy %p\n", graph); return 0; }
Result cuGraphLaunch(Handle ready, Handle stream) { printf("replay %p %p\n", ready, stream); return 0; }
Result cuGraphExecDestroy(Handle ready) { printf("drop %p\n", ready); return 0; }
Result cuGetErrorString(Result result, const char **text) { *text = "a text"; return 0; }

Result cuGetProcAddress_v2(const char *name, Handle *function, int version, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v3", "_v2", "WithFlags", ""};
  Dl_info here;
  dladdr((void *)cuInit, &here);
  Handle library = dlopen(here.dli_fname, RTLD_NOW);
  *function = 0;
  for (int k = 0; k < 4 && !*function; k++) {
    char full[200];
    snprintf(full, sizeof full, "%s%s", name, suffixes[k]);
    *function = dlsym(library, full);
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : NOT_FOUND;
}
Result cuGetProcAddress(const char *name, Handle *function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}

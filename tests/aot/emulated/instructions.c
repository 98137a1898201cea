/* A plugin for QEMU that counts the guest's instructions, and writes their number to instructions.txt at the end. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What of qemu-plugin.h is needed here: version 1 of the interface, which QEMU 4.2 to 8 have. */
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *, uint64_t);
int qemu_plugin_version = 1;

static uint64_t count;

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &count, qemu_plugin_tb_n_insns(block));
}

static void ended(plugin_id id, void *unused) {
  (void)id, (void)unused;
  FILE *file = fopen("instructions.txt", "w");
  fprintf(file, "%llu\n", (unsigned long long)count);
  fclose(file);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}

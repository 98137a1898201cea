/* Runs one exported model, m.h, as often as the request's first byte says, so that a run's instructions are a difference.
 * Behind that byte the request has the one input's elements; the answer is those of the one output. The sizes of both
 * come from the command line. */
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "m.h"

_Alignas(64) unsigned char tw_request[1 << 20]; /* what the hosts read at once */
_Alignas(64) unsigned char tw_answer[OUTPUT_BYTES];
static _Alignas(64) unsigned char memory[M_WORKSPACE_BYTES];
static _Alignas(64) unsigned char input[INPUT_BYTES];

int32_t tw_answer_all(int32_t n) {
  const void *inputs[] = {input};
  void *outputs[] = {tw_answer};
  m_model *model;
  (void)n;
  memcpy(input, tw_request + 1, INPUT_BYTES);
  if (m_create(&model, memory, sizeof memory, NULL, 1)) return 0;
  for (int k = 0; k < tw_request[0]; k++)
    if (m_run(model, NULL, inputs, outputs)) return 0;
  return OUTPUT_BYTES;
}

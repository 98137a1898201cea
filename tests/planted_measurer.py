"""A process that answers as ``tilewright.tools.measure`` does, with numbers that follow from the schedules, and fails.

In: how to fail, the kernel of which any other schedule than the first fails, a file. Out: answers; in the file a line
for each measurement of a lone kernel that was handed over. Not its business: compiling, which would take longer than
all else.
"""

import json
import os
import re
import signal
import sys
import time
from zlib import crc32

kind, kernel, log = sys.argv[1:]
CALLS = 5


def write(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def fail(n: int) -> None:
    """Fail in the way that is asked for, by no answer or a wrong one."""
    nothing = {"ticks": [{"k": []}] * n, "calls": [[]] * n}
    odd = {name: {"ticks": [{"k": [x] * CALLS}] * n, "calls": [[x] * CALLS] * n} for name, x in ODD.items()}
    match kind:
        case "fault" | "abort" | "kill" | "stop":
            number = {"fault": "SEGV", "abort": "ABRT", "kill": "KILL", "stop": "STOP"}[kind]
            os.kill(os.getpid(), getattr(signal, f"SIG{number}"))
        case "end" | "error":
            os._exit(int(kind == "error"))
        case "hang":
            time.sleep(1000)
        case "half a line":
            os.write(1, b'{"ticks": [')
            os._exit(0)
        case "close":
            os.close(1)
            os._exit(0)
        case "noise":
            write("\x00 no JSON")
        case "a list":
            write("[]")
        case "nothing":
            write(json.dumps(nothing))
        case "wrong" | "refused" | "crash":
            write(json.dumps({"kind": kind, "why": "planted"}))
        case _:
            write(json.dumps(odd[kind]))


ODD = {"negative": -1.0, "not a number": float("nan"), "text": "1", "no end": float("inf")}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "folder" in request:
            write('{"compiling": 1.0}')
            continue
        schedules = request["schedules"]
        if "alone" in request:
            if kind != "none" and request["alone"] == kernel:
                fail(len(schedules))
                continue
            ticks = [{request["alone"]: [1000 + crc32(s.encode()) % 1000] * CALLS} for s in schedules]
            write(json.dumps({"ticks": ticks, "calls": [[t[request["alone"]][0] / 1e6] * CALLS for t in ticks]}))
            with open(log, "a") as file:
                file.write(json.dumps([request["alone"], *schedules]) + "\n")
            continue
        blocks = [dict(re.findall(r"schedule (\w+)[^\n]*\n((?:  .*\n)*)", s)) for s in schedules]
        if kind != "none" and blocks[0].get(kernel) != blocks[-1].get(kernel):
            fail(len(schedules))
            continue
        # what was taken is faster in the model too
        ticks = [{k: [2000 - 500 * (x != blocks[-1].get(k))] * CALLS for k, x in b.items()} for b in blocks]
        calls = [[sum(t[0] for t in of_one.values()) / 1e6] * CALLS for of_one in ticks]
        write(json.dumps({"ticks": ticks, "calls": calls}))


if __name__ == "__main__":
    main()

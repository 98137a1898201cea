"""Stands for the process of a search: finds a given file, or nothing, or fails in a way. Arguments: how, the file."""

import json
import os
import shutil
import sys
import time

kind, path = sys.argv[1:]
request = json.loads(sys.stdin.readline())
if kind == "crash":
    os.abort()
if kind == "hang":
    time.sleep(1000)
if kind == "noise":
    print("no JSON", flush=True)
elif kind == "nothing":
    print(json.dumps({"found": False, "candidates": 3, "faults": [], "notes": []}), flush=True)
else:
    if kind == "found":
        shutil.copy(path, os.path.join(request["folder"], "found.tw"))
    if kind == "damaged":
        with open(os.path.join(request["folder"], "found.tw"), "wb") as file:
            file.write(b"half of it")
    print(json.dumps({"found": True, "candidates": 3, "faults": ["k: crash"], "notes": []}), flush=True)
sys.stdin.readline()

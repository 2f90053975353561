"""A process that compiles modules: reads requests as lines of JSON, answers in the same way.

libtpu may end its process instead of reporting an error, so it lives in one of its own. Started by
`compiler.py` with the environment that libtpu needs; the answers go to the file descriptor given as
the first argument, because libtpu writes to stdout and stderr.
"""

import ctypes
import json
import os
import re
import resource
import sys
import threading
import time
from pathlib import Path

from .exchange import partitions
from .hlo import UNKNOWN_CYCLES


def estimated_cycles(optimized: bytes) -> int | None:
    """The compiler's estimates for single instructions, added up. They stand as JSON in the backend
    configuration of each instruction."""
    found = map(int, re.findall(rb'"estimated_cycles":"?(\d+)', optimized))
    known = [cycles for cycles in found if cycles < UNKNOWN_CYCLES]
    return sum(known) if known else None


def compile_one(topology, text: str, dump: str | None, executable: str | None) -> dict:
    """Compiles `text`. The compiler's listings go into the directory `dump`, the program into the
    file `executable`."""
    import torch

    overrides = [("xla_dump_to", dump), ("xla_dump_hlo_as_text", True)] if dump else []
    start = time.monotonic()
    try:
        program = topology.compile(text, overrides, partitions(text))
    except torch.OutOfMemoryError as error:
        return {"status": "out of memory", "message": str(error)}
    except Exception as error:
        return {"status": "error", "message": str(error)}
    result = {"status": "ok", "seconds": time.monotonic() - start, **program.memory()}
    costs = program.costs()
    for field, name in (
        ("flops", "flops"),
        ("bytes_accessed", "bytes accessed"),
        ("optimal_seconds", "optimal_seconds"),
    ):
        # The compiler says -1 for what it cannot tell.
        if costs.get(name, -1) >= 0:
            result[field] = costs[name]
    result["estimated_cycles"] = estimated_cycles(program.optimized()[1])
    if executable:
        ctypes.CDLL(None).malloc_trim(0)  # what compiling has left
        Path(executable).write_bytes(program.serialize())
    return result


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, also in the middle of a compilation."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    from torch_tpu import _C

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    topologies = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["topology"], json.dumps(request["options"]))
        try:
            if key not in topologies:
                options = [tuple(option) for option in request["options"]]
                topologies[key] = _C.Topology(request["plugin"], key[0], options)
            text = Path(request["file"]).read_text()
            cpu_start = time.process_time()
            answer = compile_one(
                topologies[key], text, request.get("dump"), request.get("executable")
            )
            if request.get("about_compiler"):
                answer["compiler"] = topologies[key].platform_version
                answer["cpu_seconds"] = time.process_time() - cpu_start
                # Of this process, in KiB.
                answer["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        except Exception as error:
            answer = {"status": "error", "message": str(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()

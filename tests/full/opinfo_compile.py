"""`torch.compile` on tpu over PyTorch's OpInfo tables: float32, forward.

    python tests/full/opinfo_compile.py --page docs/compile-coverage.md

Each operator runs on the CPU, eagerly on tpu and compiled for tpu. Compiled counts only what is
right eagerly. Worker processes take operators one after another; one that dies or takes too long
is replaced and the operator marked. `--resume` keeps what the file has; `--only REGEX` chooses.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import platform
import queue
import re
import subprocess
import sys
import threading
import time
import warnings

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

HEAD = """\
# `torch.compile` and PyTorch's operators

`make opinfo-compile` runs every operator of PyTorch's OpInfo tables on device `tpu`, which is
XLA:CPU here: float32, forward, {samples} samples each, against CPU PyTorch (values, dtypes, shapes,
strides, errors), eagerly and under `torch.compile(backend="tpu")`, where each operator starts with
an empty Dynamo. This page is written by it.

PyTorch {torch}, Python {python}.

| | operators |
|---|---|
| right eagerly | {eager} |
| of these right under `torch.compile` | {right} ({share:.1f} %) |
| of these one graph without breaks | {whole} |
"""


# --- a worker


def differs(op, actual, eager):
    """Random results must be those of eager mode with the same seed."""
    import torch
    from test_opinfo import WITHOUT_VALUES
    from torch.utils._pytree import tree_flatten

    if op.name not in WITHOUT_VALUES or "empty" in op.name:
        return
    for a, e in zip(tree_flatten(actual)[0], tree_flatten(eager)[0], strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a.cpu(), e.cpu(), rtol=1e-4, atol=1e-4, equal_nan=True)


def first_line(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def check(op, count, among):
    """What one operator does; `status` is "right", "eager" (not right eagerly) or "wrong"."""
    import torch
    from agreement import outcome
    from opinfo_gradients import moved
    from test_opinfo import compare, widened
    from torch._dynamo.utils import counters
    from torch.utils._pytree import tree_flatten, tree_map

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    drawn = list(itertools.islice(op.sample_inputs("cpu", torch.float32), among))
    record = {"status": "right", "error": "", "cuts": []}
    compiled = torch.compile(lambda input, *args, **kwargs: op.op(input, *args, **kwargs))
    for sample in drawn[:: max(1, len(drawn) // count)][:count]:

        def run(device, function=op.op, sample=sample, convert=lambda x: x):
            torch.manual_seed(0)
            input, args, kwargs = tree_map(convert, moved(op, sample, device))
            result = function(input, *args, **kwargs)
            process = sample.output_process_fn_grad
            return result if process is None else process(result)

        exact = lambda run=run: tree_flatten(run("cpu", convert=widened))[0]  # noqa: E731
        expected, cpu_error = outcome(run, "cpu")
        eager, error = outcome(run, "tpu")
        try:
            assert (error is None) == (cpu_error is None), repr(error or cpu_error)
            if error is None:
                compare(op, eager, expected, exact)
        except AssertionError as failure:
            return {**record, "status": "eager", "error": first_line(failure)}
        if error is not None:
            continue
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            actual, error = outcome(lambda device, run=run: run(device, compiled), "tpu")
        record["cuts"] += [str(w.message) for w in told if "cannot be part" in str(w.message)]
        try:
            assert error is None, first_line(error)
            compare(op, actual, expected, exact)
            differs(op, actual, eager)
        except AssertionError as failure:
            record.update(status="wrong", error=first_line(error or failure))
            break
    record["graphs"] = counters["stats"]["unique_graphs"]
    record["breaks"] = [reason.splitlines()[0] for reason in counters["graph_break"]]
    return record


def work(arguments):
    import torch
    from torch.testing._internal import common_methods_invocations as tables

    # It saves and restores generators around the operator, which no graph can do.
    tables.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    op_db = tables.op_db
    with os.fdopen(arguments.pipe, "w", buffering=1) as pipe:
        torch.ones(1, device="tpu").item()
        for index in map(int, sys.stdin):
            start = time.monotonic()
            try:
                record = check(op_db[index], arguments.samples, 24)
            except Exception as error:
                record = {"status": "wrong", "error": first_line(error), "cuts": []}
            record["seconds"] = round(time.monotonic() - start, 2)
            pipe.write(json.dumps({"op": op_db[index].full_name, **record}) + "\n")


# --- the parent


class Worker:
    def __init__(self, arguments):
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--pipe", str(writing), "--samples", str(arguments.samples)],
            pass_fds=[writing],
            # What an earlier run has cached is not what is asked about.
            env={**os.environ, "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        os.close(writing)
        self.lines = queue.Queue()
        self.answered = 0
        threading.Thread(target=self._listen, args=[reading], daemon=True).start()

    def _listen(self, reading):
        with os.fdopen(reading) as pipe:
            for line in pipe:
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def ask(self, index, seconds):
        """The record of an operator, or why there is none."""
        try:
            self.process.stdin.write(f"{index}\n")
            self.process.stdin.flush()
            # The first answer takes the worker's start with it.
            record = self.lines.get(timeout=seconds if self.answered else seconds + 120)
        except queue.Empty:
            return {"status": "wrong", "error": f"took more than {seconds} s", "cuts": []}
        except BrokenPipeError:
            record = None
        self.answered += 1
        if record is None:
            code = self.process.wait()
            return {"status": "wrong", "error": f"process ended with {code}", "cuts": []}
        return record

    def stop(self):
        self.process.kill()
        self.process.wait()


def sweep(arguments, operators, out):
    waiting = queue.Queue()
    for item in operators:
        waiting.put(item)
    lock = threading.Lock()

    def serve():
        worker = None
        while True:
            try:
                index, name = waiting.get_nowait()
            except queue.Empty:
                break
            if worker is None:
                worker = Worker(arguments)
            record = {"op": name, **worker.ask(index, arguments.seconds)}
            with lock:
                out.write(json.dumps(record) + "\n")
                out.flush()
                if record["status"] == "wrong":
                    print(f"{name}: {record['error']}", flush=True)
            # Graphs of many operators are a lot of memory.
            if "graphs" not in record or worker.answered >= 100:
                worker.stop()
                worker = None
        if worker is not None:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(arguments.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def page(records, samples):
    import torch

    eager = [r for r in records if r["status"] != "eager"]
    right = [r for r in eager if r["status"] == "right"]
    whole = [r for r in right if r["graphs"] and not r["breaks"]]
    text = HEAD.format(
        samples=samples,
        torch=torch.__version__,
        python=platform.python_version(),
        eager=len(eager),
        right=len(right),
        share=100 * len(right) / max(1, len(eager)),
        whole=len(whole),
    )

    def section(title, groups):
        lines = [f"- {reason}: {', '.join(sorted(set(names)))}" for reason, names in groups]
        return f"\n## {title}\n\n" + ("\n".join(sorted(lines)) or "None.") + "\n"

    cuts, breaks = collections.defaultdict(list), collections.defaultdict(list)
    for record in right:
        for reason in record["breaks"]:
            breaks[reason].append(record["op"])
        for cut in record["cuts"]:
            cuts[cut.split(": ")[1].split(" ")[0]].append(record["op"])
    text += section("Wrong", [(r["op"], [r["error"]]) for r in eager if r["status"] == "wrong"])
    text += section("Operators at which a graph is cut", cuts.items())
    text += section("Graph breaks", breaks.items())
    text += section("No graph", [("all Python", [r["op"] for r in right if not r["graphs"]])])
    text += section(
        "Not right eagerly", [(r["op"], [r["error"]]) for r in records if r["status"] == "eager"]
    )
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="build/opinfo-compile.jsonl")
    parser.add_argument("--page", help="Markdown page to write")
    parser.add_argument("--only", default="", help="regular expression over names")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="for one operator")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pipe", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pipe is not None:
        return work(arguments)

    import torch
    from test_opinfo import NOT_HERE, SPARSE
    from torch.testing._internal.common_methods_invocations import op_db

    operators = [
        (i, op.full_name)
        for i, op in enumerate(op_db)
        if torch.float32 in op.supported_dtypes("cpu")
        and op.full_name not in SPARSE | NOT_HERE
        and re.search(arguments.only, op.full_name)
    ]
    out = pathlib.Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if arguments.resume and out.exists():
        done = {r["op"]: r for r in map(json.loads, out.read_text().splitlines())}
    with out.open("a" if arguments.resume else "w") as file:
        sweep(arguments, [o for o in operators if o[1] not in done], file)
    records = {r["op"]: r for r in map(json.loads, out.read_text().splitlines())}
    text = page([records[name] for name in sorted(records)], arguments.samples)
    if arguments.page:
        pathlib.Path(arguments.page).write_text(text)
    print(text.split("\n## ")[0])


if __name__ == "__main__":
    main()

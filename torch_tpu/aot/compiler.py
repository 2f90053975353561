"""Compiles modules with libtpu in processes of their own."""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from torch_tpu import _plugins

from .report import ModuleReport, Status
from .topology import resolve_topology

# What libtpu has to find before it is loaded where there is no TPU: no queries for metadata (half a
# minute each), no lock that keeps a second process out, no log files, a description of a machine.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class _Worker:
    """One compiling process; starts again after a crash."""

    def __init__(self) -> None:
        self.process = None

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, closed by stop()
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu.aot.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[writing],
            env={**os.environ, **ENVIRONMENT},
            text=True,
        )
        os.close(writing)
        self.answers = os.fdopen(reading)

    def compile(self, request: dict, timeout: float) -> dict:
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.answers], [], [], timeout)
            if not ready:
                self.stop()
                return {"status": "timeout", "message": f"not compiled within {timeout:g} s"}
            if line := self.answers.readline():
                return json.loads(line)
        except BrokenPipeError:
            pass
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        message = f"the compiler ended its process ({how}): {self._last_words()}"
        self.stop()
        return {"status": "aborted", "message": message}

    def _last_words(self) -> str:
        """What libtpu wrote when it failed: its last fatal lines, else the last ones."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        for i, line in enumerate(lines):
            if line.startswith("F") and "]" in line:
                return "\n".join(lines[i : i + 3])
        return "\n".join(lines[-3:])

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.answers.close()
        self.log.close()
        self.process = None


def _target(topology: str) -> dict:
    """What a worker has to know of a topology. Raises ValueError for one that does not exist and
    ModuleNotFoundError without libtpu."""
    name, options = resolve_topology(topology)
    plugin = _plugins.libtpu()
    if plugin is None:
        raise ModuleNotFoundError("libtpu is not installed: pip install 'torch-tpu[tpu]'")
    return {"topology": name, "options": options, "plugin": plugin}


def compile_in_detail(
    file: Path, topology: str, *, dump: Path, executable: Path | None, timeout: float
) -> dict:
    """Compiles one module in a process of its own.

    The compiler's listings go into the directory `dump`; they are there even if memory ran out,
    and as far as it came if it was ended. A program that compiled is written to `executable`. The
    answer has "status" and "message" (see `Status`), "seconds", the figures of `ModuleReport`, and
    of the process "compiler" and "host_bytes". Errors as in `compile_modules`.
    """
    target = _target(topology)
    worker = _Worker()
    start = time.monotonic()
    try:
        request = {
            "file": str(file),
            "dump": str(dump),
            "executable": executable and str(executable),
            "about_compiler": True,
            **target,
        }
        answer = worker.compile(request, timeout)
    finally:
        worker.stop()
    answer.setdefault("seconds", time.monotonic() - start)
    return answer


def compile_modules(
    files: Iterable[str | Path],
    topology: str,
    *,
    jobs: int | None = None,
    timeout: float = 600.0,
    on_report: Callable[[ModuleReport], None] | None = None,
) -> list[ModuleReport]:
    """Compiles StableHLO modules for a TPU topology; no TPU is needed.

    `files` hold one module each, as text. `topology` is named as in "v5e:1x1". `jobs` processes
    compile at a time (default: one for each processor, at most four); one that the compiler ends is
    replaced. `timeout` is for one module, in seconds. `on_report` is called with each report as it
    comes, from any thread, but one at a time. Returns the reports in the order of `files`. Raises
    ValueError for a topology that does not exist and ModuleNotFoundError without libtpu.
    """
    target = _target(topology)
    files = [str(file) for file in files]
    reports: list[ModuleReport | None] = [None] * len(files)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(len(files)):
        waiting.put(i)
    errors = []
    reporting = threading.Lock()

    def work() -> None:
        worker = _Worker()
        try:
            while not errors:
                try:
                    i = waiting.get_nowait()
                except queue.Empty:
                    return
                start = time.monotonic()
                answer = worker.compile({"file": files[i], **target}, timeout)
                answer.setdefault("seconds", time.monotonic() - start)
                answer["status"] = Status(answer["status"])
                reports[i] = ModuleReport(file=files[i], topology=topology, **answer)
                if on_report is not None:
                    with reporting:
                        on_report(reports[i])
        except BaseException as error:
            errors.append(error)
        finally:
            worker.stop()

    if jobs is None:
        jobs = min(4, len(os.sched_getaffinity(0)))
    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(files)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return reports

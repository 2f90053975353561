"""Runs many random programs: `make fuzz`, or python -m fuzz in tests/python.

Programs come in batches, each by a process of its own with a seed of its own, which is printed: the
same seed gives the same programs. hypothesis simplifies the first failing program of a batch, which
is printed as a script.
"""

import argparse
import subprocess
import sys
import warnings

import hypothesis
import torch
from hypothesis import strategies as st

from fuzz import drawing, program

BATCH = 100


def programs(count, **settings):
    """A function that runs `count` random programs and raises what the simplest failure raises."""

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
        **settings,
    )
    @hypothesis.given(st.data())
    def check(data):
        program.run(drawing.Draw(lambda low, high: data.draw(st.integers(low, high))))

    return check


def run_batch(seed, count):
    hypothesis.seed(seed)(programs(count))()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--batch", action="store_true", help="run one batch in this process")
    arguments = parser.parse_args()
    if arguments.batch:
        warnings.simplefilter("ignore")
        torch.set_warn_always(False)
        try:
            run_batch(arguments.seed, arguments.programs)
        except program.Disagreement as found:
            print(found)
            sys.exit(1)
        return
    failed = []
    for done in range(0, arguments.programs, BATCH):
        seed, count = arguments.seed + done // BATCH, min(BATCH, arguments.programs - done)
        command = [sys.executable, "-m", "fuzz", "--batch", f"--seed={seed}", f"--programs={count}"]
        ended = subprocess.run(command, capture_output=True, text=True)
        verdict = "FAILED" if ended.returncode else "ok"
        print(f"seed {seed}: {count} programs, {verdict}", flush=True)
        if ended.returncode:
            failed.append(seed)
            print(ended.stdout + ended.stderr[-3000:], flush=True)
    print(f"{arguments.programs} programs; failing seeds: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

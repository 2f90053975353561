"""Runs code in a Python process of its own, for what a process can do or be only once."""

import os
import subprocess
import sys
import textwrap


def run(code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess:
    """Runs `code`; the environment is ours with the changes given."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def check(code: str, **options) -> str:
    """Runs `code`, which must succeed and write nothing to stderr; what it printed."""
    done = run(code, **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout

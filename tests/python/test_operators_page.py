"""docs/operators.md tells what is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_page_is_not_stale():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "operators.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr

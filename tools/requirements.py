#!/usr/bin/env python3
"""Prints requirements that pyproject.toml lists, one a line, for pip's `-r`.

usage: requirements.py GROUP...
GROUP is "build" (what the build needs), "run" (what the package needs) or the name of an extra.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    pyproject = tomllib.loads(text)
    project = pyproject["project"]
    groups = {
        "build": pyproject["build-system"]["requires"],
        "run": project["dependencies"],
        **project["optional-dependencies"],
    }
    # A requirement named by two groups is printed once.
    for line in dict.fromkeys(line for group in sys.argv[1:] for line in groups[group]):
        print(line)


if __name__ == "__main__":
    main()

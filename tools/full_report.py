"""Writes a Markdown page about a run of `make test-full` from pytest's XML reports."""

import collections
import platform
import sys
import xml.etree.ElementTree as ET

import torch

HEAD = """\
# The long tests

`make test-full` checks every operator of PyTorch's OpInfo tables on device `tpu`, which is XLA:CPU
here: against CPU PyTorch (`tests/full/test_opinfo.py`: values, dtypes, shapes, strides and whether
there is an error), and its gradients against differences (`tests/full/test_gradients.py`: also of
in-place forms, forward mode and second derivatives). This page is written by it.

PyTorch {torch}, Python {python}, plugin {plugin}.
"""


def parts(case):
    """The operator and what of it a case checks: its file and the parameters."""
    file = case.get("classname").rpartition(".")[2]
    parameters = case.get("name").partition("[")[2].rstrip("]")
    # An operator's name may have a hyphen too.
    operator, *others = parameters.rsplit("-", 2 if file == "test_gradients" else 1)
    return operator, f"{file}: {' '.join(others)}"


def main(paths):
    counts = collections.defaultdict(collections.Counter)
    failed = collections.defaultdict(set)
    skipped = collections.defaultdict(set)
    for path in paths:
        for case in ET.parse(path).iter("testcase"):
            outcome = "passed"
            operator, kind = parts(case)
            for child in case:
                if child.tag in ("failure", "error"):
                    outcome = "failed"
                    failed[operator].add(kind)
                elif child.tag == "skipped":
                    outcome = "not checked"
                    reason = child.get("message").removeprefix("Skipped: ")
                    if reason.startswith("right, by way of the CPU"):
                        outcome = "by way of the CPU"
                        reason = reason.partition(": ")[2]
                        for name in reason.split(", "):
                            skipped[name].add(operator)
                    else:
                        skipped[reason].add(operator)
            counts[kind][outcome] += 1

    plugin = torch.tpu.plugin_info()
    name = plugin["path"].rpartition("/")[2]
    version = ".".join(str(part) for part in plugin["api_version"])
    print(
        HEAD.format(
            torch=torch.__version__,
            python=platform.python_version(),
            plugin=f"`{name}` (PJRT {version})",
        )
    )
    columns = ["passed", "failed", "by way of the CPU", "not checked"]
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, count in sorted(counts.items()):
        print(f"| {name} | " + " | ".join(str(count[c]) for c in columns) + " |")
    print("\n## Failed\n")
    for name, kinds in sorted(failed.items()):
        print(f"- {name}: {', '.join(sorted(kinds))}")
    if not failed:
        print("None.")
    for title, native in (("By way of the CPU", True), ("Not checked", False)):
        print(f"\n## {title}\n")
        for reason, names in sorted(skipped.items()):
            if reason.startswith("aten::") is native:
                print(f"- {reason}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main(sys.argv[1:])

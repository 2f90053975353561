#!/usr/bin/env python3
"""Host overhead of eager operators on small tensors: this device, CPU, and other installations.

usage: eager_overhead.py [--runs 3] [--floor PROGRAM] [--peer FILE | --peer-python PYTHON]
  --floor PROGRAM   the compiled pjrt_floor.cpp: what the plugin itself needs for an addition
  --peer FILE       a shell file that sets PEER_PYTHON and the environment of another package that
                    offers a device "tpu"; --peer-boot names the module that starts it
Each figure is the wall time of a call including the final synchronisation, the best of all rounds.
All are measured in turn, several times, because only ratios within one run mean anything. Exits
with 1 if a ratio to the peer, or the distance to the floor, is not what the project promises.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

# How many times faster than the peer each must be.
WANTED = {
    "add": 3.0,
    "mul_scalar": 2.5,
    "mm": 1.5,
    "transpose_add": 3.0,
    "add_": 3.0,
    "two_views": 1.0,
    "item": 6.0,
    "mlp_forward": 1.4,
    "mlp_train_sgd": 2.0,
    "mlp_train_adamw": 2.0,
}
# Microseconds that an addition may take above the plugin's own time.
ABOVE_FLOOR = 1.5


def measure(device: str, rounds: int) -> dict[str, float]:
    """Microseconds a call for each case, in this process."""
    import torch

    def best(run, count: int) -> float:
        def once(n: int) -> float:
            start = time.perf_counter()
            run(n)
            if device != "cpu":
                torch.accelerator.synchronize()
            return (time.perf_counter() - start) / n * 1e6

        once(20)
        return min(once(count) for _ in range(rounds))

    torch.manual_seed(0)
    x, y = (torch.randn(8, 8).to(device) for _ in range(2))
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).to(
        device
    )
    batch = torch.randn(8, 64).to(device)

    def repeat(call):
        def run(n: int) -> None:
            for _ in range(n):
                call()

        return run

    def chain(operator):
        def run(n: int) -> None:
            z = x
            for _ in range(n):
                z = operator(z)

        return run

    def in_place(n: int) -> None:
        z = x.clone()
        for _ in range(n):
            z.add_(y)

    def training(optimizer):
        def step() -> None:
            optimizer.zero_grad()
            mlp(batch).square().mean().backward()
            optimizer.step()

        return step

    sgd = torch.optim.SGD(mlp.parameters(), lr=0.01)
    adamw = torch.optim.AdamW(mlp.parameters(), lr=0.001)
    cases = {
        "add": (chain(lambda z: z + y), 1000),
        "mul_scalar": (chain(lambda z: z * 1.0001), 1000),
        "mm": (chain(lambda z: z @ y), 1000),
        "transpose_add": (chain(lambda z: z.t() + y), 1000),
        "add_": (in_place, 1000),
        "two_views": (repeat(lambda: x.view(64).view(8, 8)), 1000),
        "item": (repeat(lambda: x[0, 0].item()), 100),
        "mlp_forward": (repeat(lambda: mlp(batch)), 200),
        "mlp_train_sgd": (repeat(training(sgd)), 50),
        "mlp_train_adamw": (repeat(training(adamw)), 50),
    }
    return {name: best(run, count) for name, (run, count) in cases.items()}


def in_subprocess(arguments: list[str], peer: argparse.Namespace | None = None) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", *arguments]
    environment = dict(os.environ)
    if peer:
        command[0] = peer.peer_python or ""  # with a file: what it sets
        if peer.peer_boot:
            command += ["--boot", peer.peer_boot]
        if peer.peer:
            script = '. "$0" && exec "${1:-$PEER_PYTHON}" "${@:2}"'
            command = ["bash", "-c", script, peer.peer, *command]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def floor_microseconds(program: str) -> float:
    """The plugin's own time for an 8x8 addition."""
    import torch

    torch.tpu.init()
    plugin = torch.tpu.plugin_info()["path"]
    done = subprocess.run([program, plugin], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["add"]


def least(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(run[name] for run in runs) for name in runs[0]}


def compare(args: argparse.Namespace) -> bool:
    """Measures, prints the table, and tells whether all promises are kept."""
    with_peer = bool(args.peer or args.peer_python)
    ours, cpu, peer, floor = [], [], [], []
    for _ in range(args.runs):
        ours.append(in_subprocess(["--device", "tpu"]))
        if with_peer:
            peer.append(in_subprocess(["--device", "tpu"], args))
        if args.floor:
            floor.append({"add": floor_microseconds(args.floor)})
        cpu.append(in_subprocess(["--device", "cpu"]))
    ours, cpu = least(ours), least(cpu)
    peer = least(peer) if peer else None

    kept = True
    heads = ["us a call", "tpu", "cpu"] + (["peer", "peer/tpu", "wanted"] if peer else [])
    print("".join(f"{head:>10}" if i else f"{head:<18}" for i, head in enumerate(heads)))
    for name, wanted in WANTED.items():
        line = f"{name:<18}{ours[name]:>10.2f}{cpu[name]:>10.2f}"
        if peer:
            ratio = peer[name] / ours[name]
            ok = ratio >= wanted
            kept &= ok
            line += f"{peer[name]:>10.2f}{ratio:>10.2f}{wanted:>10.1f}  {'ok' if ok else 'FAILED'}"
        print(line)
    if floor:
        lowest = least(floor)["add"]
        above = ours["add"] - lowest
        ok = above <= ABOVE_FLOOR
        kept &= ok
        print(
            f"add: {above:.2f} us above the plugin's own {lowest:.2f} us, "
            f"at most {ABOVE_FLOOR} wanted  {'ok' if ok else 'FAILED'}"
        )
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--floor", metavar="PROGRAM")
    parser.add_argument("--peer", metavar="FILE")
    parser.add_argument("--peer-python", metavar="PYTHON")
    parser.add_argument("--peer-boot", metavar="MODULE")
    parser.add_argument(
        "--measure", action="store_true", help="measure in this process, print JSON"
    )
    parser.add_argument("--device", default="tpu", help="of --measure")
    parser.add_argument("--boot", metavar="MODULE", help="of --measure: import this first")
    parser.add_argument("--rounds", type=int, default=7, help="of --measure")
    args = parser.parse_args()
    if args.measure:
        if args.boot:
            importlib.import_module(args.boot)
        print(json.dumps(measure(args.device, args.rounds)))
        return
    sys.exit(0 if compare(args) else 1)


if __name__ == "__main__":
    main()

"""Runs the checks of another script here, with threads of this process as its ranks.

usage: threads.py RANKS SCRIPT [CHECK ...]

Each thread has a device of its own, so that programs reach all ranks. TORCH_TPU_DEVICES says how
many there are.
"""

import importlib
import os
import sys
import threading
import traceback

# PyTorch keeps what operators give on fake tensors for all threads, and takes "tpu" for one device.
os.environ["TORCH_FAKE_TENSOR_DISPATCH_CACHE"] = "0"

import ranks
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg


def main() -> None:
    world, script = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    ranks.threads = True
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    module = importlib.import_module(script)
    store, done = dist.HashStore(), []

    def run(rank: int) -> None:
        try:
            torch.tpu.set_device(rank)
            module.main(rank=rank, world_size=world, store=store)
            done.append(rank)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # the others may wait for ever

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("all ranks passed" if len(done) == world else "not all passed", flush=True)


if __name__ == "__main__":
    main()

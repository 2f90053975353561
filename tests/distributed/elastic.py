"""Training that survives the death of a rank. Under `torchrun --max-restarts=1` the last rank kills
itself in step 3 of the first attempt; the second goes on from the newest checkpoint. Rank 0 prints
the losses of each attempt. A second argument, "undisturbed", leaves that out."""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from problem import adamw, batch, mine, net
from ranks import say
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, FATAL_STEP = 6, 3


def newest(path):
    """Of the checkpoints that were finished: their metadata is written last."""
    whole = [int(d) for d in os.listdir(path) if os.path.exists(os.path.join(path, d, ".metadata"))]
    return max(whole, default=None)


def main(path, disturbed):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("tpu_dist")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("tpu", (world,))
    model = net()
    for layer in (model.first, model.second, model.extra, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = adamw(model.parameters())
    first, saved = 0, newest(path)
    if saved is not None:
        weights, optimizer = get_state_dict(model, opt)
        state = {"model": weights, "optimizer": optimizer, "step": torch.tensor(-1)}
        dcp.load(state, checkpoint_id=os.path.join(path, str(saved)))
        set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=optimizer)
        first = state["step"].item() + 1
    losses = []
    for step in range(first, STEPS):
        x, y = batch(step)
        loss = F.mse_loss(model(mine(x), 1), mine(y))
        if disturbed and attempt == 0 and step == FATAL_STEP and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        opt.step()
        opt.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        weights, optimizer = get_state_dict(model, opt)
        state = {"model": weights, "optimizer": optimizer, "step": torch.tensor(step)}
        dcp.save(state, checkpoint_id=os.path.join(path, str(step)))
    dist.barrier()
    if rank == 0:
        say("trained", json.dumps([attempt, first, losses]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "undisturbed" not in sys.argv)

"""Distributed checkpoints: "save" writes what the world trained, "load" compares it elsewhere."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from problem import adamw, close, net
from ranks import held, same, say
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros


def sharded():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = net()
    for layer in (model.first, model.second, model.extra, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, adamw(model.parameters()), mesh


def train(model, opt, steps, single=False):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(12, 8, generator=generator)  # divides by all numbers of ranks
        y = torch.sin(x[:, :4] * 3)
        if not single:
            x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (x, y))
        F.mse_loss(model(x.to("tpu")), y.to("tpu")).backward()
        opt.step()
        opt.zero_grad()


def state(model, opt, mesh):
    weights, optimizer = get_state_dict(model, opt)
    return {"model": weights, "optimizer": optimizer, "step": torch.tensor(3)}


def save(path):
    model, opt, mesh = sharded()
    train(model, opt, range(3))
    dcp.save(state(model, opt, mesh), checkpoint_id=os.path.join(path, "sync"))
    future = dcp.async_save(
        state(model, opt, mesh),
        checkpoint_id=os.path.join(path, "async"),
        process_group=dist.new_group(backend="gloo"),
    )
    future.result()
    whole = held(5, (7, 8), torch.bfloat16)
    placed = distribute_tensor(whole.to("tpu"), mesh, [Shard(0)])
    dcp.save({"w": placed}, checkpoint_id=os.path.join(path, "uneven"))


def load(path):
    expected = net()
    opt = adamw(expected.parameters())
    train(expected, opt, range(5), single=True)
    for kind in ("sync", "async"):
        model, opt, mesh = sharded()
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        saved = state(model, opt, mesh)
        dcp.load(saved, checkpoint_id=os.path.join(path, kind))
        set_state_dict(
            model, opt, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
        assert saved["step"] == 3
        train(model, opt, range(3, 5))
        whole = net()
        with torch.no_grad():
            for p, q in zip(whole.parameters(), model.parameters(), strict=True):
                p.copy_(q.full_tensor() if isinstance(q, DTensor) else q)
        close(whole, expected)
    out = zeros(7, 8, dtype=torch.bfloat16, device_mesh=mesh, placements=[Shard(1)])
    dcp.load({"w": out}, checkpoint_id=os.path.join(path, "uneven"))
    same(out.full_tensor(), held(5, (7, 8), torch.bfloat16))


if __name__ == "__main__":
    dist.init_process_group("cpu:gloo,tpu:tpu_dist")
    {"save": save, "load": load}[sys.argv[1]](sys.argv[2])
    dist.barrier()
    dist.destroy_process_group()
    say("passed")

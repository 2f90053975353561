"""DDP, ZeRO and SyncBatchNorm: five steps equal a single process's."""

import copy
import io
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from problem import ROWS, adamw, batch, close, mine, net, reference
from ranks import check, main
from torch.nn.parallel import DistributedDataParallel


def train(model, opt) -> None:
    """Five steps, on this rank's part of each batch."""
    for step in range(5):
        x, y = batch(step)
        F.mse_loss(model(mine(x), step), mine(y)).backward()
        opt.step()
        opt.zero_grad()


@check
def ddp_unused_parameters():
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    opt = adamw(model.parameters())
    train(model, opt)
    close(model.module, reference())


@check
def ddp_as_for_gpus():
    """A device by LOCAL_RANK, wherever one can be named; here each process has one."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("tpu", local_rank)
    model = net().cpu().to(device)
    assert model.last.weight.device == torch.ones(2).to(local_rank).device == torch.device("tpu:0")
    dist.barrier(device_ids=[local_rank])
    model = DistributedDataParallel(model, device_ids=[local_rank], find_unused_parameters=True)
    train(model, adamw(model.parameters()))
    torch.tpu.synchronize(device)
    assert torch.tpu.memory_allocated(local_rank) == torch.tpu.memory_allocated(0) > 0
    close(model.module, reference())
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    assert torch.load(file, map_location=device).device == torch.device("tpu:0")
    assert torch.tpu.get_device_name(device) == torch.tpu.get_device_name(0)
    generator = torch.Generator(device).manual_seed(1)
    assert torch.randn(3, device=device, generator=generator).device == torch.device("tpu:0")
    for other in (local_rank + 1, 7):
        try:
            torch.ones(2, device=f"tpu:{other}")
        except RuntimeError as error:
            assert "available" in str(error)
        else:
            raise AssertionError(other)


@check
def ddp_no_sync_and_small_buckets():
    model = DistributedDataParallel(
        net(), bucket_cap_mb=0.002, gradient_as_bucket_view=True, find_unused_parameters=True
    )
    opt = adamw(model.parameters())
    for step in range(4):
        x, y = batch(step)
        if step % 2 == 0:
            with model.no_sync():
                F.mse_loss(model(mine(x), step), mine(y)).backward()
        else:
            F.mse_loss(model(mine(x), step), mine(y)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            opt.zero_grad()
    close(model.module, reference(steps=4, accumulate=2, clip=0.5))


@check
def ddp_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def own(state, bucket):
        state.append(bucket.index())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / dist.get_world_size())

    seen = []
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    for hook, state, tolerance in (
        (own, seen, {}),
        (default_hooks.fp16_compress_hook, None, {"rtol": 0.2, "atol": 0.05}),
        (powerSGD_hook.powerSGD_hook, power, {"rtol": 1.0, "atol": 0.2}),
    ):
        model = DistributedDataParallel(net(), find_unused_parameters=True)
        model.register_comm_hook(state, hook)
        opt = adamw(model.parameters())
        train(model, opt)
        close(model.module, reference(), **tolerance)
    assert seen


@check
def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net(), find_unused_parameters=True)
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **adamw.keywords)
    train(model, opt)
    close(model.module, reference())


@check
def sync_batch_norm():
    torch.manual_seed(0)
    single = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    single.append(nn.Linear(4 * 16, 3))
    several = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(single))
    single, several = single.to("tpu"), DistributedDataParallel(several.to("tpu"))
    opts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (single, several)]
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(ROWS * dist.get_world_size(), 2, 6, 6, generator=generator).to("tpu")
        y = torch.arange(len(x), device="tpu") % 3
        F.cross_entropy(single(x), y).backward()
        F.cross_entropy(several(mine(x)), mine(y)).backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()
    close(several.module, single)
    torch.testing.assert_close(
        several.module[1].running_var.cpu(), single[1].running_var.cpu(), rtol=1e-4, atol=1e-5
    )


if __name__ == "__main__":
    main()

"""A training step of an MLP cut in two ways, with nothing but collectives: its layers over pairs
of ranks, its batch over the others."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import check, main


class CopyToAll(torch.autograd.Function):
    """The same activations on every rank of the group; their gradients add up."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOverAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def weights():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) * 0.3 for shape in ((8, 16), (16, 8))]


def batch(rows):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(4))


def single(rows, steps):
    first, second = (w.requires_grad_() for w in weights())
    for _ in range(steps):
        x = batch(rows)
        loss = ((torch.tanh(x @ first) @ second - x) ** 2).mean()
        gradients = torch.autograd.grad(loss, (first, second))
        with torch.no_grad():
            for w, g in zip((first, second), gradients, strict=True):
                w -= 0.5 * g
    return first.detach(), second.detach()


@check
def step():
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world, 2)]
    copies = [dist.new_group(list(range(r, world, 2))) for r in (0, 1)]
    layers, data = pairs[rank // 2], copies[rank % 2]
    first, second = weights()
    half = slice(8 * (rank % 2), 8 * (rank % 2) + 8)
    first = first[:, half].contiguous().to("tpu").requires_grad_()
    second = second[half].contiguous().to("tpu").requires_grad_()
    rows = 4 * (world // 2)
    mine = slice(4 * (rank // 2), 4 * (rank // 2) + 4)
    for _ in range(3):
        x = batch(rows)[mine].to("tpu").requires_grad_()
        hidden = torch.tanh(CopyToAll.apply(x, layers) @ first)
        y = SumOverAll.apply(hidden @ second, layers)
        F.mse_loss(y, x.detach()).backward()
        with torch.no_grad():
            for w in (first, second):
                dist.all_reduce(w.grad, dist.ReduceOp.AVG, group=data)
                w -= 0.5 * w.grad
                w.grad = None
    whole = single(rows, 3)
    torch.testing.assert_close(first.detach().cpu(), whole[0][:, half], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second.detach().cpu(), whole[1][half], rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()

"""grid_sample and its gradients against CPU PyTorch."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on

MODES = list(itertools.product(["bilinear", "nearest", "bicubic"], [False, True]))
PADDINGS = ["zeros", "border", "reflection"]


def random(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sample(image, grid, **options):
    image, grid = image.requires_grad_(), grid.requires_grad_()
    out = F.grid_sample(image, grid, **options)
    weight = torch.arange(out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape) / 50
    return out, torch.autograd.grad(out, (image, grid), weight)


@pytest.mark.parametrize("mode, align", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("sizes", [(5, 4), (1, 3), (2, 2, 3)])
def test_grid_sample(sizes, padding, mode, align):
    if mode == "bicubic":
        sizes = sizes[:2]  # images only
    options = {"mode": mode, "padding_mode": padding, "align_corners": align}
    image = random(2, 3, *sizes)
    # Well outside of the image, too, and never on the edge between two points.
    grid = random(2, *(s + 1 for s in sizes), len(sizes), seed=1) * 2
    agree_on(lambda i, g: sample(i, g, **options), image, grid, tolerance=1e-10)
    agree_on(lambda i, g: sample(i, g, **options), image.float(), grid.float(), tolerance=1e-4)
    strided = image.transpose(1, -1).contiguous().transpose(1, -1)
    agree_on(lambda i, g: sample(i, g, **options), strided, grid, tolerance=1e-10)


@pytest.mark.parametrize("padding", PADDINGS)
def test_half_types_compute_in_float32(padding):
    image, grid = random(1, 2, 6, 6).bfloat16(), random(1, 5, 5, 2, seed=1).bfloat16()
    options = {"padding_mode": padding, "align_corners": False}
    out = F.grid_sample(image.to("tpu"), grid.to("tpu"), **options)
    exact = F.grid_sample(image.float(), grid.float(), **options)
    torch.testing.assert_close(out.cpu(), exact.bfloat16(), rtol=8e-3, atol=0)


def test_only_the_gradients_asked_for():
    def of_grid(image, grid):
        out = F.grid_sample(image, grid.requires_grad_(), align_corners=False)
        return torch.autograd.grad(out.sum(), grid)

    def of_image(image, grid):
        out = F.grid_sample(image.requires_grad_(), grid, align_corners=False)
        return torch.autograd.grad(out.sum(), image)

    for function in (of_grid, of_image):
        agree_on(function, random(1, 2, 4, 4), random(1, 3, 3, 2, seed=1), tolerance=1e-10)


def test_infinite_elements_out_of_bounds_are_not_read():
    image = torch.full((1, 1, 2, 2), float("inf"))
    grid = torch.full((1, 1, 1, 2), 5.0)
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image, grid)


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_that_are_not_finite(mode, padding):
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    nan, inf = float("nan"), float("inf")
    grid = torch.tensor([[[[nan, 0.0], [0.0, nan], [inf, 0.0], [0.0, -inf]]]])
    options = {"mode": mode, "padding_mode": padding, "align_corners": False}
    agree_on(lambda i, g: F.grid_sample(i, g, **options), image, grid)


def test_empty():
    agree_on(lambda i, g: sample(i, g, align_corners=False), random(0, 2, 3, 3), random(0, 2, 2, 2))
    agree_on(lambda i, g: sample(i, g, align_corners=False), random(1, 2, 3, 3), random(1, 0, 2, 2))


def test_errors():
    image, grid = random(1, 2, 3, 3), random(1, 2, 2, 2)
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image, grid[..., :1])
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image, grid.repeat(2, 1, 1, 1))
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image[0], grid)
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image[:, :, :0], grid)
    agree_on(lambda i, g: F.grid_sample(i, g, align_corners=False), image, grid.float())

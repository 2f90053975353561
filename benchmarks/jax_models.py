#!/usr/bin/env python3
"""The yardstick of jax_compare.py: a Llama layer and a training step in plain JAX, as StableHLO for
the TPU.

usage: jax_models.py DIRECTORY [--small]
Needs jax and no PyTorch. Writes CASE-DTYPE-PRECISION.mlir for each of CASES and VARIANTS, and
prints the version of jax. Nothing is computed.
jax_compare.py holds the same models in PyTorch and imports the sizes from here.
"""

import argparse
import dataclasses
import math
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Sizes:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    batch: int
    length: int
    layers: int = 1
    vocabulary: int = 0
    theta: float = 500000.0
    eps: float = 1e-5


LLAMA_1B_LAYER = Sizes(2048, 32, 8, 64, 8192, batch=1, length=2048)
SMALL_LLAMA = Sizes(512, 8, 4, 64, 1536, batch=8, length=256, layers=4, vocabulary=8192)
# For tests.
TINY_LAYER = Sizes(128, 4, 2, 32, 256, batch=1, length=128)
TINY_LLAMA = Sizes(128, 4, 2, 32, 256, batch=2, length=32, layers=2, vocabulary=256)

# dtype, and the precision of matrix products; bfloat16 has only one.
VARIANTS = (("float32", "highest"), ("float32", "default"), ("bfloat16", "default"))
CASES = ("layer", "step")


@dataclasses.dataclass(frozen=True)
class AdamW:
    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01


OPTIMIZER = AdamW()


def sizes_of(case: str, small: bool) -> Sizes:
    if case == "layer":
        return TINY_LAYER if small else LLAMA_1B_LAYER
    return TINY_LLAMA if small else SMALL_LLAMA


def file_name(case: str, dtype: str, precision: str) -> str:
    return f"{case}-{dtype}-{precision}.mlir"


def write_modules(directory: Path, small: bool) -> None:
    import jax
    import jax.numpy as jnp

    def rms_norm(x, weight, eps):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
        return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)

    def rotary_tables(s: Sizes, dtype):
        """Cosines and sines, [length, head_dim]."""
        steps = jnp.arange(0, s.head_dim, 2, dtype=jnp.float32) / s.head_dim
        angles = jnp.outer(jnp.arange(s.length, dtype=jnp.float32), s.theta**-steps)
        angles = jnp.concatenate([angles, angles], axis=-1)
        return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)

    def rotate(x, cos, sin):
        """x: [batch, length, heads, head_dim]."""
        first, second = jnp.split(x, 2, axis=-1)
        turned = jnp.concatenate([-second, first], axis=-1)
        return x * cos[:, None, :] + turned * sin[:, None, :]

    def attention(q, k, v):
        """q: [batch, length, kv heads, group, head_dim], k and v: [batch, length, kv heads,
        head_dim]."""
        length, head_dim = q.shape[1], q.shape[-1]
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(head_dim)
        seen = jnp.tril(jnp.ones((length, length), dtype=bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(q.dtype)
        return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)

    def layer(s: Sizes, p, x, cos, sin):
        """x: [batch, length, hidden]."""
        batch, length, _ = x.shape
        h = rms_norm(x, p["input_norm"], s.eps)
        q = (h @ p["q"]).reshape(batch, length, s.heads, s.head_dim)
        k = (h @ p["k"]).reshape(batch, length, s.kv_heads, s.head_dim)
        v = (h @ p["v"]).reshape(batch, length, s.kv_heads, s.head_dim)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q = q.reshape(batch, length, s.kv_heads, s.heads // s.kv_heads, s.head_dim)
        x = x + attention(q, k, v).reshape(batch, length, -1) @ p["o"]
        h = rms_norm(x, p["post_norm"], s.eps)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss(s: Sizes, params, tokens, targets):
        x = params["embedding"][tokens]
        cos, sin = rotary_tables(s, x.dtype)
        for p in params["layers"]:
            x = layer(s, p, x, cos, sin)
        x = rms_norm(x, params["norm"], s.eps)
        logits = jax.nn.log_softmax((x @ params["head"]).astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], axis=-1))

    def train_step(s: Sizes, params, means, squares, step, tokens, targets):
        """AdamW in float32, stored in the parameters' dtype. Returns the new parameters and states,
        and the loss."""
        value, grads = jax.value_and_grad(lambda p: loss(s, p, tokens, targets))(params)
        step = step + 1
        o = OPTIMIZER

        def update(p, m, v, g):
            p32, g32 = p.astype(jnp.float32), g.astype(jnp.float32)
            m32 = o.beta1 * m.astype(jnp.float32) + (1 - o.beta1) * g32
            v32 = o.beta2 * v.astype(jnp.float32) + (1 - o.beta2) * jnp.square(g32)
            size = m32 / (1 - o.beta1**step)
            spread = jnp.sqrt(v32 / (1 - o.beta2**step)) + o.eps
            p32 = p32 * (1 - o.rate * o.decay) - o.rate * size / spread
            return p32.astype(p.dtype), m32.astype(m.dtype), v32.astype(v.dtype)

        updated = jax.tree.map(update, params, means, squares, grads)
        params, means, squares = jax.tree.transpose(
            jax.tree.structure(params), jax.tree.structure((0, 0, 0)), updated
        )
        return params, means, squares, step, value

    def layer_shapes(s: Sizes, dtype):
        def shape(*dims):
            return jax.ShapeDtypeStruct(dims, dtype)

        return {
            "input_norm": shape(s.hidden),
            "q": shape(s.hidden, s.heads * s.head_dim),
            "k": shape(s.hidden, s.kv_heads * s.head_dim),
            "v": shape(s.hidden, s.kv_heads * s.head_dim),
            "o": shape(s.heads * s.head_dim, s.hidden),
            "post_norm": shape(s.hidden),
            "gate": shape(s.hidden, s.intermediate),
            "up": shape(s.hidden, s.intermediate),
            "down": shape(s.intermediate, s.hidden),
        }

    def lowered_layer(s: Sizes, dtype):
        x = jax.ShapeDtypeStruct((s.batch, s.length, s.hidden), dtype)
        table = jax.ShapeDtypeStruct((s.length, s.head_dim), dtype)
        function = jax.jit(lambda p, x, cos, sin: layer(s, p, x, cos, sin))
        return function.trace(layer_shapes(s, dtype), x, table, table)

    def lowered_step(s: Sizes, dtype):
        params = {
            "embedding": jax.ShapeDtypeStruct((s.vocabulary, s.hidden), dtype),
            "layers": [layer_shapes(s, dtype) for _ in range(s.layers)],
            "norm": jax.ShapeDtypeStruct((s.hidden,), dtype),
            "head": jax.ShapeDtypeStruct((s.hidden, s.vocabulary), dtype),
        }
        step = jax.ShapeDtypeStruct((), jnp.float32)
        tokens = jax.ShapeDtypeStruct((s.batch, s.length), jnp.int32)

        def function(params, means, squares, step, tokens, targets):
            return train_step(s, params, means, squares, step, tokens, targets)

        jitted = jax.jit(function, donate_argnums=(0, 1, 2, 3))
        return jitted.trace(params, params, params, step, tokens, tokens)

    directory.mkdir(parents=True, exist_ok=True)
    for dtype, precision in VARIANTS:
        with jax.default_matmul_precision(precision):
            for case, trace in (("layer", lowered_layer), ("step", lowered_step)):
                traced = trace(sizes_of(case, small), jnp.dtype(dtype))
                text = traced.lower(lowering_platforms=("tpu",)).as_text()
                (directory / file_name(case, dtype, precision)).write_text(text)
    print(jax.__version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--small", action="store_true", help="sizes for a quick check")
    args = parser.parse_args()
    write_modules(args.directory, args.small)


if __name__ == "__main__":
    main()

"""Our kernels in Triton against PyTorch: on a device, or in Triton's interpreter without one.

`TRITON_INTERPRET=1 python tests/triton_cases.py` prints the name and worst error of each case.
"""

import itertools
import os
import subprocess
import sys

import torch
from project_files import ROOT
from torch.nn import functional as F

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Allowed, relative to the largest number: sums in another order, and one rounding at the end."""


def drawn(*shape, dtype=torch.float32, device="cpu", seed=0):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device, dtype)


def error(found, expected):
    """Give the largest difference over the largest number."""
    apart = (found.double() - expected.double()).abs().max()
    return float(apart / expected.double().abs().max())


def joint_products(device, dtypes, **launch):
    """Yield case and error: several matrices, odd sizes, biases, and the other way round."""
    from tinytorch.transforms.static_generation.triton_products import joint_product

    for dtype, rows, sizes in itertools.product(dtypes, (1, 3), ((5,), (10, 6, 7))):
        place = {"dtype": dtype, "device": device}
        x = drawn(rows, 1, 72, **place)
        weights = [drawn(size, 72, seed=size, **place) for size in sizes]
        biases = [drawn(size, seed=size, **place) for size in sizes]
        for given in ([], biases):
            pairs = itertools.zip_longest(weights, given)
            exact = [
                F.linear(x.double(), w.double(), None if b is None else b.double())
                for w, b in pairs
            ]
            found = joint_product(x, weights, given, transposed=False, **launch)
            yield f"joint {dtype} {rows} {sizes} {bool(given)}", error(found, torch.cat(exact, -1))
        turned = [weights[0].T.contiguous()]
        found = joint_product(x, turned, biases[:1], transposed=True, **launch)
        exact = F.linear(x.double(), weights[0].double(), biases[0].double())
        yield f"transposed {dtype} {rows} {sizes[:1]}", error(found, exact)


def normed(x, norm, eps):
    """Scale rows to a mean square of one and by weights, as models of transformers do it."""
    wide = x.float()
    return norm * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def fused_products(device, dtypes, **launch):
    """Yield case and error: a norm before and a sum after, rows of one and of several blocks."""
    from tinytorch.transforms.static_generation.triton_products import gated_product, joint_product

    eps = 1e-5
    for dtype, rows, width in itertools.product(dtypes, (1, 3), (72, 2100)):
        place = {"dtype": dtype, "device": device}
        x, norm = drawn(rows, 1, width, **place), drawn(width, seed=1, **place)
        gate, up = (drawn(6, width, seed=seed, **place) for seed in (2, 3))
        added, bias = drawn(rows, 1, 6, seed=4, **place), drawn(6, seed=5, **place)
        scaled = normed(x, norm, eps)
        name = f"{dtype} {rows} {width}"
        exact = F.linear(scaled.double(), torch.cat([gate, up]).double())
        found = joint_product(x, [gate, up], [], norm=norm, eps=eps, **launch)
        yield f"normed {name}", error(found, exact)
        exact = F.linear(x.double(), gate.double(), bias.double()) + added.double()
        found = joint_product(x, [gate], [bias], added=added, **launch)
        yield f"added {name}", error(found, exact)
        found = joint_product(x, [gate], [bias], norm=norm, eps=eps, added=added, **launch)
        exact = F.linear(scaled.double(), gate.double(), bias.double()) + added.double()
        yield f"normed and added {name}", error(found, exact)
        found = gated_product(x, gate, up, "silu", norm=norm, eps=eps, **launch)
        exact = F.silu(F.linear(scaled.double(), gate.double()))
        yield f"gated, normed {name}", error(found, exact * F.linear(scaled.double(), up.double()))


def gated_products(device, dtypes, **launch):
    """Yield case and error: every activation."""
    from tinytorch.transforms.static_generation.operators import ACTIVATIONS
    from tinytorch.transforms.static_generation.triton_products import gated_product

    for dtype, (name, activation) in itertools.product(dtypes, ACTIVATIONS.items()):
        place = {"dtype": dtype, "device": device}
        x, gate, up = (
            drawn(2, 72, **place),
            drawn(9, 72, seed=1, **place),
            drawn(9, 72, seed=2, **place),
        )
        exact = activation(F.linear(x, gate)) * F.linear(x, up)
        yield f"gated {dtype} {name}", error(gated_product(x, gate, up, name, **launch), exact)


SHAPES = [  # length, newest, batch, heads, heads of keys, width
    (200, 150, 2, 4, 2, 64),
    (64, 3, 1, 4, 4, 80),
    (300, 299, 1, 4, 1, 32),
]


def attentions(device, dtypes, **launch):
    """Yield case and error: groups, odd widths, masks, several parts; twice, as counters return."""
    from tinytorch.transforms.static_generation.triton_attention import attend

    for dtype, (length, newest, batch, heads, kv_heads, width) in itertools.product(dtypes, SHAPES):
        place = {"dtype": dtype, "device": device}
        q = drawn(batch, 1, heads, width, **place).transpose(1, 2)
        k, v = (drawn(batch, kv_heads, length, width, seed=seed, **place) for seed in (1, 2))
        seen = drawn(batch, 1, 1, length, device=device, seed=3) > -0.5
        seen[..., 0] = True
        written = torch.arange(length, device=device) <= newest
        state = torch.zeros(1 + batch * heads, dtype=torch.int64, device=device)
        state[0] = newest
        keys, values = (each.repeat_interleave(heads // kv_heads, 1) for each in (k, v))
        for mask in (seen, None, seen):
            allowed = written if mask is None else mask & written
            exact = F.scaled_dot_product_attention(
                q.double(),
                keys.double(),
                values.double(),
                attn_mask=allowed.expand(batch, 1, 1, -1),
            )
            found = attend(q, k, v, mask, state, width**-0.5, **launch)
            name = f"attend {dtype} {length} {newest} {mask is None}"
            yield name, error(found, exact.transpose(1, 2))
            assert not state[1:].any(), "the counters must be zero again"


def worst(cases, dtypes, device, **launch):
    """Give the worst error over what is allowed, with its name."""
    found = list(cases(device, dtypes, **launch))
    scored = [(error / ROUNDING[_dtype(name)], name) for name, error in found]
    return max(scored)


def _dtype(name):
    return torch.bfloat16 if "bfloat16" in name else torch.float32


def worst_in_interpreter(name):
    """Give the worst case of these as Triton's own interpreter computes it, in another process."""
    ran = subprocess.run(
        [sys.executable, __file__, name],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
    )
    assert ran.returncode == 0, ran.stderr
    share, _, case = ran.stdout.strip().rpartition("\n")[-1].partition(" ")
    return float(share), case


CASES = {
    "joint": joint_products,
    "fused": fused_products,
    "gated": gated_products,
    "attend": attentions,
}

if __name__ == "__main__":
    # The interpreter computes bfloat16 products in a way that no device does.
    share, case = worst(CASES[sys.argv[1]], [torch.float32], "cpu", is_early=False)
    print(share, case)

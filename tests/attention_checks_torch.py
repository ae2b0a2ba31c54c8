"""What the tests of fused attention ask: the plan, calls of the kernel, and the same outputs."""

import torch
from torch.nn import functional as F

from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention import FuseAttention

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A few roundings of sums of at most 16 products."""


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case_of(model, *inputs, **keywords):
    return Workload("case", model.eval(), inputs, keywords=keywords)


def fused(case):
    plan = FuseAttention().plan(case)
    return plan, FuseAttention().apply(case, plan)


def reasons(case):
    plan = FuseAttention().plan(case)
    assert plan.is_empty
    return {each.layer: each.reason for each in plan.skipped}


def counted(model, *inputs, **keywords):
    """Call a model, and count how often fused attention is called; also give what was asked."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def count(*args, **settings):
        calls.append(settings)
        return kernel(*args, **settings)

    F.scaled_dot_product_attention = count
    try:
        with torch.no_grad():
            model(*inputs, **keywords)
    finally:
        F.scaled_dot_product_attention = kernel
    return calls


def is_same(model, twin, *inputs, bound=1e-5, **keywords):
    with torch.no_grad():
        one, other = (each(*inputs, **keywords).double() for each in (model, twin))
    return float((one - other).abs().max()) <= bound * float(one.abs().max())

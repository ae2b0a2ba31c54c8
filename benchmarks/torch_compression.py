"""Compress models of transformers: bytes held, multiply-accumulates and time, on a CPU or a GPU.

    python benchmarks/torch_compression.py [--device cuda] [--only resnet vit ...] [--quick]

ResNet-50, ViT-B/16, GPT-2 small and a Llama of 1.1 billion parameters with random weights, so there
is no accuracy to speak of: that is measured on trained models, in compression.py. Every result is
checked before it is timed: bytes as predicted, outputs of the same shape, the input model as it
was; that removed channels compute what zeros do is checked by the plan itself. A ratio of time is
the candidate's over the baseline's, by our own comparer: below 1 the candidate is faster. Eager
PyTorch, warm. Needs torch, transformers and torch-pruning.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
import transformers
from generation_tables import header, row

import tinytorch
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.workload import Workload
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.support.weights import count_macs

Built = tuple[torch.nn.Module, torch.Tensor]
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def _resnet(quick: bool) -> Built:
    sizes: dict[str, Any] = {"depths": [1, 2, 1, 1], "hidden_sizes": [32, 64, 64, 64]}
    config = transformers.ResNetConfig(num_labels=1000, **(sizes if quick else {}))
    model = transformers.ResNetForImageClassification(config)
    return model, torch.randn(2, 3, 64, 64) if quick else torch.randn(32, 3, 224, 224)


def _vit(quick: bool) -> Built:
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.ViTConfig(num_labels=1000, **(sizes if quick else {}))
    return transformers.ViTForImageClassification(config), torch.randn(
        1 if quick else 32, 3, 224, 224
    )


def _gpt2(quick: bool) -> Built:
    sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000} if quick else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **TOKENS))
    return model, torch.randint(2, 999, (2, 32) if quick else (8, 512))


def _llama(quick: bool) -> Built:
    sizes = (64, 128, 3, 4, 2, 1000) if quick else (2048, 8192, 16, 32, 8, 32000)
    width, hidden, layers, heads, shared, tokens = sizes
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=shared, vocab_size=tokens, **TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), torch.randint(
        2, 999, (2, 32) if quick else (4, 512)
    )


MODELS: dict[str, Callable[[bool], Built]] = {
    "resnet": _resnet,
    "vit": _vit,
    "gpt2": _gpt2,
    "llama": _llama,
}
TRANSFORMS = {
    "half of the MACs": RemoveChannels(macs=0.5, round_to=8),
    "half of the channels, by activation": RemoveChannels(0.5, importance="activation", round_to=8),
    "two layers fewer": RemoveLayers(count=2),
    "low rank, 60% of the energy": LowRank(energy=0.6),
}


def _workload(name: str, *, quick: bool, device: str, dtype: torch.dtype) -> Workload:
    torch.manual_seed(0)
    model, x = MODELS[name](quick)
    x = x.to(device)
    x = x.to(dtype) if x.is_floating_point() else x
    model = model.to(device, dtype).eval()
    return Workload(name, model, (x,), calibration=((x.flip(0),),))


def _held(model: torch.nn.Module) -> int:
    return sum(each.nbytes for each in TorchAdapter().parameters(model))


def _output_shape(model: torch.nn.Module, workload: Workload) -> torch.Size:
    with torch.no_grad():
        return next(iter(tensors_in(model(*workload.inputs)))).shape


def _show(name: str, workload: Workload, transform: Any, budget_s: float) -> None:
    started = time.perf_counter()
    plan = transform.plan(workload)
    planned = time.perf_counter() - started
    small = transform.apply(workload, plan)
    held, macs = _held(workload.model), count_macs(workload.model, workload)
    assert plan.shrinkage is not None
    assert plan.shrinkage.value == held / _held(small), "bytes are not those that were predicted"
    assert _output_shape(small, workload) == _output_shape(workload.model, workload)
    found = tinytorch.compare(
        workload, replace(workload, model=small), budget_s=budget_s, evidence=False
    )
    ratio = f"{found.ratio.value:.2f} ({found.ratio.low:.2f} to {found.ratio.high:.2f})"
    left = f"{count_macs(small, workload) / macs:.0%}"
    row(name, left, f"{held / _held(small):.2f}", ratio, found.verdict, f"{planned:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="tiny models; times mean nothing")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each comparison")
    options = parser.parse_args()
    names = ("torch", "transformers", "torch-pruning")
    print(", ".join(f"{name} {version(name)}" for name in names), end=", ")
    print(torch.cuda.get_device_name() if options.device == "cuda" else "CPU")
    dtypes = (torch.float32, torch.bfloat16) if options.device == "cuda" else (torch.float32,)
    for name in options.only:
        for dtype in dtypes:
            case = _workload(name, quick=options.quick, device=options.device, dtype=dtype)
            before = {key: value.clone() for key, value in case.model.state_dict().items()}
            print(f"\n## {name}, {str(dtype).removeprefix('torch.')}\n")
            header("transform", "MACs left", "times smaller", "time over", "verdict", "planning")
            for what, transform in TRANSFORMS.items():
                _show(what, case, transform, options.budget)
            after = case.model.state_dict()
            assert all(torch.equal(after[key], value) for key, value in before.items())
            del case, before, after


if __name__ == "__main__":
    main()

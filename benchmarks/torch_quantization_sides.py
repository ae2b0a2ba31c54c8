"""What `torch_quantization.py` measures: decoders with random weights, bytes, outputs, calls."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinytorch import Workload
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.quantize.torch_layers import as_linear, weight_of

ADAPTER = TorchAdapter()
BYTES_PER_SCALE = 4
TUNING = {"coordinate_descent_tuning": True}
"""With it, torch.compile makes the product of one row and a matrix a kernel of its own, into which
turning whole numbers into floats is fused. Without it, the whole matrix is written as floats."""


# ---------------------------------------------------------------- the models


def make_gpt2(quick: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "vocab_size": 8192} if quick else {}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes, **tokens))


def make_llama(quick: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192 if quick else 32000,
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=1 if quick else 22,
            num_attention_heads=32,
            num_key_value_heads=4,
            use_cache=False,
        )
    )


MODELS: dict[str, Callable[[bool], nn.Module]] = {"gpt2": make_gpt2, "llama-1.1b": make_llama}


def workload(name: str, options: argparse.Namespace) -> Workload:
    """Give a model with random weights, made on the device, and token ids to call it with."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(options.device):
            model = MODELS[name](options.quick).eval()
    finally:
        torch.set_default_dtype(before)
    model = model.to(options.device, dtype)
    size = model.config.vocab_size
    ids = [torch.randint(0, size, (2, 64), device=options.device) for _ in range(2)]
    return Workload(name, model, (ids[0],), calibration=tuple((each,) for each in ids))


# ---------------------------------------------------------------- bytes


def held(model: nn.Module) -> int:
    return sum(each.nbytes for each in ADAPTER.parameters(model))


def ideal(case: Workload, plan: Plan) -> int:
    """Count values of so many bits and one scale per row or group; the rest stays as it is."""
    modules = dict(case.model.named_modules())
    total = held(case.model)
    for step in plan.steps:
        weight = weight_of(as_linear(modules[step.layer]))
        scales = weight.shape[0]
        if step.settings["bits"] == 4:
            scales = weight.numel() // step.settings["group_size"]
        total -= weight.numel() * weight.element_size()
        total += weight.numel() * step.settings["bits"] // 8 + BYTES_PER_SCALE * scales
    return total


def file_bytes(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        ADAPTER.save(model, path)
        return path.stat().st_size


# ---------------------------------------------------------------- outputs


def logits(model: Callable[..., Any], ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits.float()
    return found


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def with_rounded_weights(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """Give a copy of the float model that holds, as floats, the weights of the quantized one.

    If both give the same outputs, the quantized layers compute what they should, and what separates
    them from the model itself is the rounding of the weights.
    """
    twin = copy.deepcopy(model)
    for path, layer in quantized.named_modules():
        weight: Any = getattr(layer, "weight", None)
        if weight is None or type(weight) is nn.Parameter:
            continue
        target = twin.get_submodule(path)
        with torch.no_grad():
            if isinstance(layer, nn.Embedding):
                rows = layer(torch.arange(weight.shape[0], device=weight.device))
                target.weight.data.copy_(rows)  # type: ignore[union-attr, operator]
                continue
            ones = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
            columns = nn.functional.linear(ones, weight)  # (inputs, outputs)
        as_linear(target).weight.data.copy_(columns.T)  # type: ignore[union-attr, operator]
    return twin


# ---------------------------------------------------------------- compiled calls


class CaptureError(RuntimeError):
    """A call cannot be captured as a CUDA graph."""


@dataclass(frozen=True)
class Replay:
    """A captured call. The graph has only addresses: `call` keeps alive what lies there."""

    graph: Any
    outputs: torch.Tensor
    call: Callable[[], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        self.graph.replay()
        return self.outputs


def allow_many_versions() -> None:
    """Let one block be compiled for every model; beyond a limit PyTorch would not compile."""
    import torch._dynamo.config as config

    for name in ("recompile_limit", "cache_size_limit"):  # as it is and as it was called
        if hasattr(config, name):
            setattr(config, name, 64)


def compiled_call(
    model: nn.Module, ids: torch.Tensor, *, tuning: bool
) -> tuple[Callable[[], torch.Tensor], str]:
    """Compile the blocks of a copy, and on a GPU capture a call of it as one CUDA graph."""
    twin = copy.deepcopy(model)
    blocks = next(each for each in twin.modules() if isinstance(each, nn.ModuleList))
    options: Any = TUNING if tuning else None
    for part in (*blocks, twin.get_output_embeddings()):  # type: ignore[operator]
        # Not part.compile(), which cannot trace the tensors of torchao in PyTorch 2.11.
        part.forward = torch.compile(part.forward, dynamic=False, options=options)
    # Without a mask of four axes, transformers looks at the ids to see whether it needs one. Such
    # a look cannot be captured, and instead of it blocks get a mask for which none was compiled.
    size = ids.shape[1]
    mask = torch.ones(1, 1, size, size, dtype=torch.bool, device=ids.device).tril()

    def call() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = twin(ids, attention_mask=mask).logits
        return found

    for _ in range(3):
        call()
    return (captured(call), "compiled, in a CUDA graph") if ids.is_cuda else (call, "compiled")


def captured(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Capture a call. If that fails, PyTorch is left broken: time nothing in that process."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.compiler.set_stance("fail_on_recompile"), torch.cuda.graph(graph):
            kept = call()
    except Exception as error:
        raise CaptureError(f"{type(error).__name__}: {error}") from error
    return Replay(graph, kept, call)

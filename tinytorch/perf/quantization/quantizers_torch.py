"""Which quantizer is taken for which layer, and whether it works in this installation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from tinytorch.perf.quantization.packed_torch import (
    DYNAMIC_LINEAR,
    DYNAMIC_RECURRENT,
    STATIC_CONVOLUTION,
    STATIC_LINEAR,
)
from tinytorch.perf.quantization.quantizer_torch import Quantizer, Settings, weight_of
from tinytorch.perf.quantization.torchao_torch import (
    AO_DYNAMIC,
    AO_EMBEDDING,
    AO_INT4_CPU,
    AO_INT4_CUDA,
    AO_KERNELS,
    AO_STATIC,
    AO_WEIGHT,
    torchao_version,
)

__all__ = [
    "QUANTIZERS",
    "choose_quantizer",
    "notes_on_gpu",
    "quantizer_of",
    "version_of",
    "why_broken",
]

QUANTIZERS: dict[tuple[str, int], dict[str, tuple[Quantizer, ...]]] = {
    ("weight_only", 8): {
        "linear": (AO_WEIGHT,),
        "convolution": (AO_KERNELS,),
        "embedding": (AO_EMBEDDING,),
    },
    ("weight_only", 4): {
        "linear": (AO_INT4_CPU, AO_INT4_CUDA, AO_WEIGHT),
        "convolution": (AO_KERNELS,),
        "embedding": (AO_EMBEDDING,),
    },
    ("dynamic", 8): {
        "linear": (DYNAMIC_LINEAR, AO_DYNAMIC),
        "embedding": (AO_EMBEDDING,),
        "recurrent": (DYNAMIC_RECURRENT,),
    },
    ("static", 8): {
        "linear": (STATIC_LINEAR, AO_STATIC),
        "convolution": (STATIC_CONVOLUTION,),
        "embedding": (AO_EMBEDDING,),
    },
}
"""By mode and bits, for each kind of layer: those in front are tried first."""

SHARED: dict[tuple[str, int], Quantizer] = {
    ("weight_only", 8): AO_WEIGHT,
    ("weight_only", 4): AO_WEIGHT,
    ("dynamic", 8): AO_DYNAMIC,
    ("static", 8): AO_STATIC,
}
"""What quantizes the weight of a linear layer that other layers hold, too."""

WHERE_ELSE = {
    ("dynamic", "convolution"): "torch's own dynamic convolution warns of its poor accuracy; "
    "mode='static' quantizes convolutions",
    ("static", "recurrent"): "no static quantizer for it; mode='dynamic' quantizes it",
    ("weight_only", "recurrent"): "no quantizer for its weights alone; mode='dynamic' has one",
}

WEIGHTS_ON_GPU = (AO_WEIGHT, AO_INT4_CUDA)
INTEGERS_ON_GPU = (AO_DYNAMIC, AO_STATIC)
SLOW_ON_GPU = (
    "{layers} may be slower than floats on a GPU: calls of GPT-2 and a Llama of 1.1 billion "
    "parameters took {times} times as long as in bfloat16 uncompiled, and compiled {compiled} "
    "(measured on an H200 with PyTorch 2.11 and torchao 0.18); compare() tells for your model"
)
FEW_ROWS_ON_GPU = (
    "compiled for a GPU, PyTorch's product of INT8 matrices takes more than 16 rows (the batch "
    "times the tokens); with fewer, such as one token at a time, compiling fails"
)


def notes_on_gpu(quantizers: Collection[Quantizer | None]) -> Iterator[str]:
    """Yield what was measured about the quantizers that were chosen for layers on a GPU."""
    if any(each in quantizers for each in WEIGHTS_ON_GPU):
        yield SLOW_ON_GPU.format(
            layers="layers with whole numbers as weights",
            times="1.3 to 1.6",
            compiled="0.81 to 1.07 times with one token, but 5 to 153 times with 128",
        )
    if any(each in quantizers for each in INTEGERS_ON_GPU):
        yield SLOW_ON_GPU.format(
            layers="layers that multiply whole numbers",
            times="9 to 69",
            compiled="1.14 to 1.22 times with 128 tokens",
        )
        yield FEW_ROWS_ON_GPU


def choose_quantizer(
    kind: str, layer: nn.Module, settings: Settings, *, is_shared: bool = False
) -> tuple[Quantizer | None, str]:
    """Give the first quantizer that takes a layer and works here, and why those before it do not.

    For INT4 the last choice is INT8: a layer that has no INT4 is better off with that than in
    floats.
    """
    wanted = settings["mode"], settings["bits"]
    candidates = QUANTIZERS[wanted].get(kind, ())
    if is_shared and kind == "linear":
        candidates = (SHARED[wanted],)
    if not candidates:
        return None, WHERE_ELSE[settings["mode"], kind]
    device = weight_of(layer).device.type
    reasons: list[str] = []
    for quantizer in [each for each in candidates if device in each.devices] or candidates:
        reason = _why_not(quantizer, kind, layer, settings)
        if not reason:
            return quantizer, "; ".join(dict.fromkeys(reasons))
        reasons.append(reason)
    return None, "; ".join(dict.fromkeys(reasons))


def quantizer_of(by: str, kind: str) -> Quantizer | None:
    """Give the quantizer of a name for a kind of layer."""
    of_kind = [each for kinds in QUANTIZERS.values() for each in kinds.get(kind, ())]
    return next((each for each in of_kind if each.by == by), None)


def version_of(quantizer: Quantizer) -> str:
    """Give the version of the package that a quantizer comes from."""
    return str(torchao_version() if quantizer.by.startswith("torchao.") else torch.__version__)


def _why_not(quantizer: Quantizer, kind: str, layer: nn.Module, settings: Settings) -> str:
    weight = weight_of(layer)
    name = quantizer.by.rpartition(".")[2]
    if weight.device.type not in quantizer.devices:
        return f"{name} runs on {' and '.join(quantizer.devices)}, not on {weight.device.type}"
    if weight.dtype not in quantizer.dtypes:
        takes = ", ".join(_word(each) for each in quantizer.dtypes)
        return f"{name} takes {takes}, not {_word(weight.dtype)}"
    if quantizer.by.startswith("torchao.") and torchao_version() is None:
        return f"{name} is a part of torchao, which is not installed: pip install torchao"
    return quantizer.why_not(layer, settings) or why_broken(
        quantizer, kind, weight.device.type, weight.dtype
    )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def why_broken(quantizer: Quantizer, kind: str, device: str, dtype: torch.dtype) -> str:
    """Try a quantizer on a small layer, and say why it does not work here, or nothing.

    Names, arguments and kernels differ between versions of torch and torchao, so what counts is
    whether it runs.
    """
    layer, x = _example(kind)
    settings = {
        "device": device,
        "group_size": 32,
        "input_range": (-4.0, 4.0),
        "output_range": (-4.0, 4.0),
        "input_axes": (2,),
    }
    try:
        x = x.to(device) if kind == "embedding" else x.to(device, dtype)
        with torch.no_grad():
            quantizer.carry_out(layer.to(device, dtype), settings)(x)
    except Exception as error:  # whatever another version of a package may raise
        first_line = (str(error).splitlines() or ["no message"])[0]
        return f"{quantizer.by} of version {version_of(quantizer)} fails here: {first_line}"
    return ""


def _example(kind: str) -> tuple[nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):  # whoever makes layers draws random numbers
        examples: dict[str, Any] = {
            "linear": lambda: (nn.Linear(128, 64), torch.ones(32, 128)),
            "convolution": lambda: (nn.Conv2d(16, 16, 3), torch.ones(1, 16, 4, 4)),
            "embedding": lambda: (nn.Embedding(32, 128), torch.arange(3)),
            "recurrent": lambda: (nn.LSTM(8, 8), torch.ones(2, 3, 8)),
        }
        made: tuple[nn.Module, torch.Tensor] = examples[kind]()
        return made

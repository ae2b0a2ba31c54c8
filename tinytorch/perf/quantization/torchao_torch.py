"""The quantizers of torchao: tensors that take the place of a weight. Imported only when needed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata, util
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tinytorch.errors import BackendError
from tinytorch.perf.quantization.layers_torch import QuantizedEmbedding
from tinytorch.perf.quantization.quantizer_torch import Quantizer, Settings, shape_of, weight_of

__all__ = [
    "AO_DYNAMIC",
    "AO_EMBEDDING",
    "AO_INT4_CPU",
    "AO_INT4_CUDA",
    "AO_KERNELS",
    "AO_STATIC",
    "AO_WEIGHT",
    "import_torchao",
    "torchao_version",
]

NOISE = {
    # Kernels for other processors and other versions of Python, which nothing here calls.
    "torchao": "Failed to load ",
    # What torchao tells PyTorch about its own types.
    "torch.utils._pytree": "is an Enum subclass and is now natively supported",
}
"""By logger, what is said whenever torchao is imported and nobody can act on."""
SCALE_BYTES, ZERO_POINT_BYTES = 4, 1
CUDA_PADDING = (8, 1024)
"""Outputs and inputs are filled up to multiples of these for the INT4 kernel of CUDA."""


def torchao_version() -> str | None:
    """Give the version of the torchao that is installed, without importing it; None without one."""
    if util.find_spec("torchao") is None:
        return None
    try:
        return metadata.version("torchao")
    except metadata.PackageNotFoundError:  # a folder on the path, not an installed package
        return "of unknown version"


def import_torchao(module: str = "torchao.quantization") -> ModuleType:
    """Import a module of torchao, without the noise of its import."""
    if torchao_version() is None:
        raise BackendError("torchao is not installed; install it with: pip install torchao")
    with _without_noise():
        return importlib.import_module(module)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Drop exactly the messages of NOISE; everything else is logged as ever."""
    filters = []
    for name, words in NOISE.items():
        logger = logging.getLogger(name)

        def keep(record: logging.LogRecord, words: str = words) -> bool:
            return words not in record.getMessage()

        logger.addFilter(keep)
        filters.append((logger, keep))
    try:
        yield
    finally:
        for logger, keep in filters:
            logger.removeFilter(keep)


# ---------------------------------------------------------------- what torchao is asked to do


def _changed(layer: nn.Module, settings: Settings, *, config: Callable[..., Any]) -> nn.Module:
    """Let torchao replace the weight of a layer."""
    quantize = import_torchao().quantize_
    quantize(layer, config(layer, settings), filter_fn=lambda each, _: each is layer)
    # A method bound to this very layer, through which its copies would hold on to it.
    vars(layer).pop("extra_repr", None)
    return layer


def _int8_weight(layer: Any, settings: Settings) -> Any:
    return import_torchao().Int8WeightOnlyConfig(set_inductor_config=False)


def _int8_dynamic(layer: Any, settings: Settings) -> Any:
    return import_torchao().Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)


def _int8_static(layer: Any, settings: Settings) -> Any:
    ao = import_torchao()
    scale = max(map(abs, settings["input_range"])) / 127
    # It wants a scale with as many axes as the inputs have.
    shape = (1,) * settings["input_axes"][0]
    return ao.Int8StaticActivationInt8WeightConfig(
        act_quant_scale=torch.full(shape, scale, device=weight_of(layer).device),
        granularity=[ao.PerTensor(), ao.PerRow()],
        set_inductor_config=False,
    )


def _int8_kernels(layer: Any, settings: Settings) -> Any:
    ao = import_torchao()
    return ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=ao.PerAxis(0))


def _int4_on_cpu(layer: Any, settings: Settings) -> Any:
    int4 = import_torchao("torchao.prototype.quantization.int4")
    size = settings["group_size"]
    return int4.PrototypeInt4WeightOnlyConfig(group_size=size, set_inductor_config=False)


def _int4_on_cuda(layer: Any, settings: Settings) -> Any:
    return import_torchao().Int4WeightOnlyConfig(
        group_size=settings["group_size"],
        int4_packing_format="tile_packed_to_4d",
        set_inductor_config=False,
    )


def _embedding(layer: nn.Embedding, settings: Settings) -> nn.Module:
    weight = weight_of(_changed(layer, settings, config=_int8_weight))
    return QuantizedEmbedding(layer, weight)


# ---------------------------------------------------------------- bytes, and what cannot be


def _row_bytes(layer: nn.Module, settings: Settings) -> int:
    """Count the values, a scale and a zero point for each row."""
    rows, columns = shape_of(layer)
    return rows * (columns + SCALE_BYTES + ZERO_POINT_BYTES)


def _row_bytes_and_scale(layer: nn.Module, settings: Settings) -> int:
    return _row_bytes(layer, settings) + SCALE_BYTES


def _kernel_bytes(layer: nn.Module, settings: Settings) -> int:
    """Count the values, a scale and a zero point for each output and place of the kernel."""
    outputs, inputs, height, width = shape_of(layer)
    step = weight_of(layer).element_size() + ZERO_POINT_BYTES
    return outputs * height * width * (inputs + step)


def _int4_bytes(layer: nn.Module, settings: Settings, *, padding: tuple[int, int] = (1, 1)) -> int:
    """Count half a byte for each value; for each group a scale and a zero point as floats."""
    padded = (-(-size // to) * to for size, to in zip(shape_of(layer), padding, strict=True))
    outputs, inputs = padded
    groups = inputs // settings["group_size"]
    return outputs * (inputs // 2 + groups * 2 * weight_of(layer).element_size())


def _why_no_groups(
    layer: nn.Module, settings: Settings, *, sizes: tuple[int, ...], outputs: int
) -> str:
    size, (rows, columns) = settings["group_size"], shape_of(layer)
    if size not in sizes:
        return f"groups of {size} inputs are not offered, those of {sizes} are"
    if columns % size:
        return f"its {columns} inputs are no multiple of group_size={size}"
    return f"its {rows} outputs are no multiple of {outputs}" if rows % outputs else ""


def _why_no_products(layer: nn.Module, settings: Settings) -> str:
    """Find matrices that torchao would multiply on the processor, as GPUs cannot."""
    rows, columns = shape_of(layer)
    if settings["device"] == "cpu" or (rows % 8 == 0 and columns % 8 == 0):
        return ""
    return f"its {columns} inputs and {rows} outputs must be multiples of 8 for INT8 on a GPU"


def _why_not_static(layer: nn.Module, settings: Settings) -> str:
    if len(settings["input_axes"]) != 1:
        return f"its inputs have {settings['input_axes']} axes, and torchao wants one number"
    return _why_no_products(layer, settings)


def _why_no_lookup(layer: nn.Embedding, settings: Settings) -> str:
    return "" if layer.max_norm is None else "its rows are changed while they are looked up"


# ---------------------------------------------------------------- the quantizers


def _torchao(name: str, config: Callable[..., Any], **fields: Any) -> Quantizer:
    usual: dict[str, Any] = {"mode": "weight_only", "carry_out": partial(_changed, config=config)}
    return Quantizer(by=f"torchao.{name}", **(usual | fields))


AO_WEIGHT = _torchao(
    "quantization.Int8WeightOnlyConfig",
    _int8_weight,
    weight_bytes=_row_bytes,
)
AO_EMBEDDING = _torchao(
    "quantization.Int8WeightOnlyConfig",
    _int8_weight,
    carry_out=_embedding,
    weight_bytes=_row_bytes,
    why_not=_why_no_lookup,
)
AO_KERNELS = _torchao(
    "quantization.IntxWeightOnlyConfig", _int8_kernels, weight_bytes=_kernel_bytes
)
AO_DYNAMIC = _torchao(
    "quantization.Int8DynamicActivationInt8WeightConfig",
    _int8_dynamic,
    mode="dynamic",
    weight_bytes=_row_bytes,
    why_not=_why_no_products,
)
AO_STATIC = _torchao(
    "quantization.Int8StaticActivationInt8WeightConfig",
    _int8_static,
    mode="static",
    weight_bytes=_row_bytes_and_scale,
    why_not=_why_not_static,
    needs_ranges=True,
    is_symmetric=True,
)
AO_INT4_CPU = _torchao(
    "prototype.quantization.int4.PrototypeInt4WeightOnlyConfig",
    _int4_on_cpu,
    bits=4,
    weight_bytes=_int4_bytes,
    why_not=partial(_why_no_groups, sizes=(32, 64, 128), outputs=16),
    devices=("cpu",),
)
AO_INT4_CUDA = _torchao(
    "quantization.Int4WeightOnlyConfig",
    _int4_on_cuda,
    bits=4,
    weight_bytes=partial(_int4_bytes, padding=CUDA_PADDING),
    why_not=partial(_why_no_groups, sizes=(32, 64, 128, 256), outputs=1),
    devices=("cuda",),
    dtypes=(torch.bfloat16,),
)

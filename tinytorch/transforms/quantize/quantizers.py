"""Which quantizer is taken for which layer, and whether it works in this installation."""

from __future__ import annotations

import importlib
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata, util
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import (
    ObserverBase,
    QConfig,
    QConfigMapping,
    default_per_channel_weight_observer,
    default_reuse_input_qconfig,
)
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn import functional as F

from tinytorch.errors import BackendError, SettingError, TinyTorchError, first_line
from tinytorch.formats.ranges import RangeObserver, choose_range
from tinytorch.models.pytorch_compile import without_noise
from tinytorch.models.pytorch_tensors import is_held_twice
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize.torch_layers import (
    QuantizedEmbedding,
    Quantizer,
    Settings,
    run_calls,
    shape_of,
    weight_of,
    weights_of,
)

# ---------------------------------------------------------------- the quantizers of torch itself:
# layers that hold packed weights. On a processor, for float32

BYTES_PER_STEP = 8
"""Scale and zero point of a channel, four bytes each, as the kernels hold them."""
BYTES_OF_INPUT_STEP = 12
"""Those of the inputs: the zero point is held in eight."""

LAST_WITH_ALL_BITS = 3
"""The last version of torch's dynamic layer that used all eight bits of its inputs; since then it
uses seven on every processor, for those whose sums would overflow. That doubles the error."""


@contextmanager
def packing() -> Iterator[None]:
    """Pack weights without what torch says about its future, under the engine of the process.

    Copying a layer and loading it pack its weights again, under the engine that is in force then.
    With another one here, the model that is timed and the one that a user loads would run other
    kernels. torch's own choice is also the faster one: on a processor with VNNI its engine `x86`
    lets oneDNN compute convolutions, 1.0 to 5.8 times as fast as FBGEMM (which `x86` takes for
    everything else), and holds their weights twice for it.

    The warnings say that all of this moves to torchao, which users of a model cannot act on.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*quantized tensor creation", UserWarning)
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        yield


@dataclass(frozen=True)
class QuantizedStep:
    """Scale and zero point of numbers from 0 to 255, or to 127 where sums could overflow."""

    scale: float
    zero_point: int
    dtype = torch.quint8

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return them as torch asks for them."""
        return torch.tensor([self.scale]), torch.tensor([self.zero_point])


def step_between(low: float, high: float, *, bits: int | None = None) -> QuantizedStep:
    """Return the step for a range; zero is in it, and exact."""
    levels = 2 ** (bits or input_bits()) - 1
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / levels or 1.0
    return QuantizedStep(scale, min(levels, max(0, round(-low / scale))))


def input_bits(layers: Iterable[nn.Module] = ()) -> int:
    """Return 7 where products of bytes are added up in 16 bits, which 8 would overflow; else 8.

    Processors without VNNI do so, and on every processor FBGEMM's kernels for depthwise
    convolutions, so that one of these among the `layers` decides for all.
    """
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    is_wide = has_vnni is not None and has_vnni()
    return 8 if is_wide and not any(map(_is_depthwise_by_fbgemm, layers)) else 7


def _is_depthwise_by_fbgemm(layer: nn.Module) -> bool:
    is_depthwise = isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1
    return is_depthwise and not _is_packed_twice(layer.groups, torch.backends.quantized.engine)


@cache
def _is_packed_twice(groups: int, engine: str) -> bool:
    """Return whether oneDNN computes convolutions of this many groups under the engine in force."""
    with packing():
        weight = torch.quantize_per_tensor(torch.ones(groups, 1, 1, 1), 1.0, 0, torch.qint8)
        pair = [1, 1]
        prepack = torch.ops.quantized.conv2d_prepack
        return is_held_twice(prepack(weight, None, pair, [0, 0], pair, groups))


def _dynamic(layer: Any, settings: Settings) -> nn.Module:
    import torch.ao.nn.quantized.dynamic as layers
    from torch.ao.quantization import per_channel_dynamic_qconfig

    layer.qconfig = per_channel_dynamic_qconfig
    with packing():
        if type(layer) is nn.Linear and layer.weight.is_meta:
            made = _dynamic_without_numbers(layer)
        else:
            made = getattr(layers, type(layer).__name__).from_float(layer)
    if isinstance(made, layers.Linear) and input_bits() == 8:
        made.version = LAST_WITH_ALL_BITS
    return made


def _dynamic_without_numbers(layer: nn.Linear) -> nn.Module:
    """Return a dynamic layer with room for integers, which never were floats."""
    import torch.ao.nn.quantized.dynamic as layers

    outputs, inputs = layer.weight.shape
    weight = torch._empty_per_channel_affine_quantized(
        (outputs, inputs),
        scales=torch.ones(outputs, dtype=torch.float64),
        zero_points=torch.zeros(outputs, dtype=torch.int64),
        axis=0,
        dtype=torch.qint8,
    )
    bias: Any = layer.bias
    made: Any = layers.Linear(1, 1)
    made.in_features, made.out_features = inputs, outputs
    made.set_weight_bias(weight, None if bias is None else torch.zeros(outputs))
    made.train(layer.training)
    return made


def _static(layer: Any, settings: Settings) -> nn.Module:
    """Wrap a packed layer between one that quantizes its inputs and one that returns floats."""
    import torch.ao.nn.quantized as layers
    from torch.ao import quantization as ao

    outputs = step_between(*settings["output_range"])
    layer.qconfig = ao.QConfig(
        activation=lambda: outputs, weight=ao.default_per_channel_weight_observer
    )
    layer.activation_post_process = outputs
    inputs = step_between(*settings["input_range"], bits=input_bits([layer]))
    scale, zero_point = inputs.calculate_qparams()
    with packing():
        wrapper: Any = ao.QuantWrapper(getattr(layers, type(layer).__name__).from_float(layer))
        wrapper.quant = layers.Quantize(scale, zero_point, torch.quint8)
        wrapper.dequant = layers.DeQuantize()
    return wrapper


def _channel_bytes(layer: nn.Module, settings: Settings, *, beside: int = 0) -> int:
    """Count the values, a scale and a zero point for each output."""
    weights = weights_of(layer).values()
    return sum(each.numel() + BYTES_PER_STEP * len(each) for each in weights) + beside


def _convolution_bytes(layer: nn.Conv2d, settings: Settings) -> int:
    is_twice = _is_packed_twice(layer.groups, torch.backends.quantized.engine)
    unpacked = layer.weight.numel() if is_twice else 0
    return _channel_bytes(layer, settings, beside=BYTES_OF_INPUT_STEP + unpacked)


def _why_no_convolution(layer: nn.Conv2d, settings: Settings) -> str:
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return ""
    return f"padding={layer.padding!r} in the mode {layer.padding_mode!r} is not offered"


def _why_no_recurrence(layer: nn.LSTM | nn.GRU, settings: Settings) -> str:
    return "projected states are not offered" if layer.proj_size else ""


_packed = partial(Quantizer, devices=("cpu",), dtypes=(torch.float32,), needs_numbers=True)
DYNAMIC_LINEAR = _packed(
    by="torch.ao.nn.quantized.dynamic.Linear",
    mode="dynamic",
    carry_out=_dynamic,
    weight_bytes=_channel_bytes,
    needs_numbers=False,
)
DYNAMIC_RECURRENT = _packed(
    by="torch.ao.nn.quantized.dynamic",
    mode="dynamic",
    carry_out=_dynamic,
    weight_bytes=_channel_bytes,
    why_not=_why_no_recurrence,
)
STATIC_LINEAR = _packed(
    by="torch.ao.quantization.QuantWrapper",
    mode="static",
    carry_out=_static,
    weight_bytes=partial(_channel_bytes, beside=BYTES_OF_INPUT_STEP),
    needs_ranges=True,
)
STATIC_CONVOLUTION = _packed(
    by="torch.ao.quantization.QuantWrapper",
    mode="static",
    carry_out=_static,
    weight_bytes=_convolution_bytes,
    why_not=_why_no_convolution,
    needs_ranges=True,
)


# ---------------------------------------------------------------- static INT8 for a whole PyTorch
# model that can be traced: numbers stay integers between layers
#
# torch folds batch norms into convolutions, lets ReLU, pooling and sums run on integers, and turns
# numbers into floats only where a layer wants these.

BY = "torch.ao.quantization.quantize_fx"
KINDS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
ON_INTEGERS: tuple[Any, ...] = (
    *(nn.ReLU, F.relu, torch.relu, "relu", "relu_"),
    *(nn.MaxPool2d, F.max_pool2d, torch.max_pool2d),
    *(nn.AvgPool2d, F.avg_pool2d, nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, "mean", torch.mean),
    *(nn.Flatten, torch.flatten, "flatten", nn.Dropout, nn.Identity),
    *(operator.add, torch.add, operator.iadd, torch.cat),
)
"""What runs on the integers that quantized layers give, so that they need not become floats."""


class _Watching(ObserverBase):
    """Watches numbers on their way through a traced model; gives scale and zero point."""

    def __init__(self, ranges: str, bits: int) -> None:
        super().__init__(torch.quint8)
        self._bits = bits
        self.qscheme = torch.per_tensor_affine
        self.quant_min, self.quant_max = 0, 255
        self._ranges = ranges
        self._observer = RangeObserver()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self._observer.update(x.detach().float().cpu().numpy())
        except TinyTorchError as error:
            raise SettingError(f"between two layers: {error}") from error
        return x

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the range of what was seen."""
        low, high = choose_range(self._observer.statistics, self._ranges)
        return step_between(low, high, bits=self._bits).calculate_qparams()


def quantize_graph(
    model: nn.Module, layers: Collection[str], workload: Workload, *, ranges: str
) -> nn.Module:
    """Trace a copy of a model, calibrate it and give it with these layers quantized.

    The copy is used up. Raises whatever tracing raises for a model that decides by its inputs what
    it does; then layers have to be quantized one by one.
    """
    model.eval()
    with packing():
        prepared = prepare_fx(model, _mapping(model, layers, ranges), workload.inputs)
        _check_called_once(prepared, layers)
        run_calls(prepared, workload.calibration_calls)
        converted = convert_fx(prepared)
    converted.eval()
    return converted


def _mapping(model: nn.Module, layers: Collection[str], ranges: str) -> QConfigMapping:
    bits = input_bits(model.get_submodule(path) for path in layers)
    observed = QConfig(
        activation=partial(_Watching, ranges, bits), weight=default_per_channel_weight_observer
    )
    mapping = QConfigMapping()
    # What is to be folded into one layer must be told the same by class.
    for each in (*KINDS, *ON_INTEGERS):
        mapping.set_object_type(each, observed)
    for each in ("reshape", "view"):
        mapping.set_object_type(each, default_reuse_input_qconfig)
    for path, module in model.named_modules():
        if type(module) in KINDS and path not in layers:
            mapping.set_module_name(path, None)
    return mapping


def _check_called_once(prepared: nn.Module, layers: Collection[str]) -> None:
    targets = [str(node.target) for node in prepared.graph.nodes if node.op == "call_module"]  # type: ignore[union-attr]
    repeated = [path for path in layers if targets.count(path) > 1]
    if repeated:
        raise SettingError(f"{repeated[0]!r} is called several times, each with other inputs")


def folded_layers(model: nn.Module, converted: nn.Module) -> list[str]:
    """Return the batch norms that were folded into the convolutions before them."""
    left = dict(converted.named_modules())
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and not isinstance(left.get(path), nn.BatchNorm2d)
    ]


# ---------------------------------------------------------------- the quantizers of torchao:
# tensors that take the place of a weight. Imported only when needed

SCALE_BYTES, ZERO_POINT_BYTES = 4, 1
CUDA_PADDING = (8, 1024)
"""Outputs and inputs are filled up to multiples of these for the INT4 kernel of CUDA."""


def torchao_version() -> str | None:
    """Return the installed version of torchao without importing it; None where it is missing."""
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
    with without_noise():
        return importlib.import_module(module)


# ---------------------------------------------------------------- what torchao is asked to do


def _changed(layer: nn.Module, settings: Settings, *, config: Callable[..., Any]) -> nn.Module:
    """Replace the weight of a layer by torchao."""
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
    needs_numbers=True,
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


# ---------------------------------------------------------------- which quantizer is taken for
# which layer, and whether it works in this installation

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
    """Return the first quantizer that takes a layer and works here, and why those before it do not.

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
    """Return the quantizer of a name for a kind of layer."""
    of_kind = [each for kinds in QUANTIZERS.values() for each in kinds.get(kind, ())]
    return next((each for each in of_kind if each.by == by), None)


def version_of(quantizer: Quantizer) -> str:
    """Return the version of the package that a quantizer comes from."""
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
        said = first_line(error)
        return f"{quantizer.by} of version {version_of(quantizer)} fails here: {said}"
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

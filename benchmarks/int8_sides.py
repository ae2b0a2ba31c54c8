"""What int8.py times: one linear layer of ours, of PyTorch and of ONNX Runtime.

Each of the functions `build_*` gives a call and a check. The check computes the layer's result once
more, from exactly the whole numbers that this side quantizes to, in float64; so what is left is
rounding, and a side that multiplied something else is found out. Libraries are imported only in the
process of their side.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from interleaving import THREADS, Build, Run

Array = np.ndarray
MOST_CHECKED_ROWS = 16
CALIBRATION_ROWS = 64


@dataclass(frozen=True)
class Case:
    """A linear layer and how many rows it is given."""

    inputs: int
    outputs: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.inputs}x{self.outputs}, batch {self.batch}"

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.inputs * self.outputs * self.batch


@dataclass(frozen=True)
class Drawn:
    """The numbers of a layer, the same on every side: x (batch, inputs), weight (inputs, outputs).

    `checked` are the rows whose results are looked at.
    """

    x: Array
    weight: Array
    bias: Array
    calibration: Array
    checked: Array

    @property
    def exact(self) -> Array:
        """The result of the layer before anything is quantized, in float64."""
        return self.x[self.checked].astype(np.float64) @ self.weight + self.bias


@dataclass(frozen=True)
class Checked:
    """What a side computed, and what it should have from the numbers that it quantized to.

    An input just between two whole numbers may have been rounded to the other one, if somebody else
    did it; `tie` is how much that can change a result.
    """

    found: Array
    expected: Array
    tie: float = 0.0


def draw(case: Case, seed: int) -> Drawn:
    """Draw inputs by the seed, and always the same weight."""
    layer, rng = np.random.default_rng(0), np.random.default_rng(seed)
    count = min(case.batch, MOST_CHECKED_ROWS)
    weight = layer.standard_normal((case.inputs, case.outputs), np.float32)
    return Drawn(
        x=rng.standard_normal((case.batch, case.inputs), np.float32),
        weight=weight / np.float32(np.sqrt(case.inputs)),
        bias=layer.standard_normal(case.outputs, np.float32),
        calibration=layer.standard_normal((CALIBRATION_ROWS, case.inputs), np.float32),
        checked=np.sort(rng.choice(case.batch, count, replace=False)),
    )


def multiply_exactly(
    x: Array, steps: Array | float, weight: Array, scales: Array | float, bias: Array
) -> Array:
    """Give the layer's result from whole numbers x (rows, inputs) and weight (inputs, outputs)."""
    product = x.astype(np.float64) @ weight.astype(np.float64)  # whole numbers below 2**53
    return product * np.asarray(steps, np.float64) * np.asarray(scales, np.float64) + bias


# ---------------------------------------------------------------- ours


def our_layer(drawn: Drawn, mode: str) -> Any:
    """Give the layer in fp32 or quantized; the mode `int4` quantizes weights to four bits."""
    from tinytorch.core.layers import Linear
    from tinytorch.transforms.quantize.layers import QuantizedLinear

    linear = Linear(*drawn.weight.shape).eval()
    linear.load_state_dict({"weight": drawn.weight, "bias": drawn.bias})
    if mode == "fp32":
        return linear
    if mode == "int4":
        return QuantizedLinear(linear, "weight_only", bits=4)
    layer = QuantizedLinear(linear, mode)
    return layer.calibrate(drawn.calibration) if mode == "static" else layer


def build_ours(case: Case, seed: int, mode: str) -> tuple[Run, Callable[[], Checked]]:
    from tinytorch.core.autograd import no_grad
    from tinytorch.core.dispatch import set_backend
    from tinytorch.core.tensor import Tensor

    set_backend("numba")
    no_grad().__enter__()  # for as long as this process lives
    drawn = draw(case, seed)
    layer, x = our_layer(drawn, mode), Tensor(drawn.x)
    return (
        lambda: layer(x),
        lambda: Checked(layer(x).data[drawn.checked], expected_of_ours(layer, drawn, mode)),
    )


def expected_of_ours(layer: Any, drawn: Drawn, mode: str) -> Array:
    from tinytorch.core.kernels.reference_quantized import quantize_by, quantize_rows

    if mode == "fp32":
        return drawn.exact
    weight, x = layer.packed.unpacked(), drawn.x[drawn.checked]
    if mode in ("weight_only", "int4"):
        scales = weight.scale
        if mode == "int4":
            scales = np.repeat(scales, weight.scheme.group_size, axis=0)
        return x.astype(np.float64) @ (weight.values * scales.astype(np.float64)) + drawn.bias
    if mode == "dynamic":
        whole, steps = quantize_rows(x)
        return multiply_exactly(whole, steps, weight.values, weight.scale, drawn.bias)
    step, zero_point = layer.input_step.data.tolist()
    whole, steps = quantize_by(x, step, int(zero_point))
    whole = whole.astype(int) - int(zero_point)
    bias = layer.bias.data * (np.float64(step) * weight.scale)  # it was quantized too
    return multiply_exactly(whole, steps, weight.values, weight.scale, bias)


# ---------------------------------------------------------------- PyTorch


def torch_linear(drawn: Drawn) -> tuple[Any, Any, Any]:
    """Give the module torch, the layer in a container, as quantizers want it, and its inputs."""
    import torch

    warnings.simplefilter("ignore")  # it deprecates what is quantized here ...
    logging.disable(logging.WARNING)  # ... and torchao misses what this processor does not need
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    linear = torch.nn.Linear(*drawn.weight.shape)
    linear.weight.copy_(torch.from_numpy(drawn.weight.T))
    linear.bias.copy_(torch.from_numpy(drawn.bias))
    return torch, torch.nn.Sequential(linear).eval(), torch.from_numpy(drawn.x)


def build_torch(case: Case, seed: int, engine: str) -> tuple[Run, Callable[[], Checked]]:
    """Build PyTorch's layer, in fp32 or dynamically quantized for one of its engines."""
    drawn = draw(case, seed)
    torch, model, x = torch_linear(drawn)
    if engine == "fp32":
        return lambda: model(x), lambda: Checked(model(x).numpy()[drawn.checked], drawn.exact)
    torch.backends.quantized.engine = engine
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)

    def check() -> Checked:
        weight = model[0].weight()
        # it leaves out one bit of the activations, in memory of instructions that saturate
        whole = torch.quantize_per_tensor_dynamic(x, torch.quint8, True)
        centred = whole.int_repr().numpy().astype(int) - whole.q_zero_point()
        expected = multiply_exactly(
            centred[drawn.checked], whole.q_scale(),
            weight.int_repr().numpy().T, weight.q_scale(), drawn.bias,
        )  # fmt: skip
        tie = whole.q_scale() * float(np.abs(drawn.weight).max())
        return Checked(model(x).numpy()[drawn.checked], expected, tie)

    return lambda: model(x), check


@lru_cache(maxsize=1)
def compiled_torchao(case: Case) -> tuple[Run, Array, Array]:
    """Compile torchao's dynamically quantized layer, once since that takes seconds.

    Gives also its whole weight (inputs, outputs), and its scales. Without compiling it is several
    times slower.
    """
    torch, model, _ = torch_linear(draw(case, 0))
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    weight = model[0].weight
    torch._inductor.config.freezing = True
    torch._inductor.config.compile_threads = 1  # or processes would stay that help to compile
    torch._dynamo.reset()  # or it would give up after some sizes
    return torch.compile(model), weight.qdata.numpy().T.copy(), weight.scale.numpy()[:, 0].copy()


def build_torchao(case: Case, seed: int, _: str) -> tuple[Run, Callable[[], Checked]]:
    drawn = draw(case, seed)
    model, weight, scales = compiled_torchao(case)
    _, _, x = torch_linear(drawn)

    def check() -> Checked:
        rows = drawn.x[drawn.checked]
        steps = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127.5)
        whole = np.clip(np.rint(rows * (1 / steps)), -128, 127)
        expected = multiply_exactly(whole, steps, weight, scales, drawn.bias)
        tie = float(steps.max() * np.abs(drawn.weight).max())
        return Checked(model(x).numpy()[drawn.checked], expected, tie)

    return lambda: model(x), check


# ---------------------------------------------------------------- ONNX Runtime


def build_onnxruntime(case: Case, seed: int, mode: str) -> tuple[Run, Callable[[], Checked]]:
    """Build a graph of one Gemm, quantized by ONNX Runtime's own tools."""
    import onnx
    import onnxruntime

    logging.disable(logging.WARNING)  # it recommends a step that changes nothing here
    drawn = draw(case, seed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    with TemporaryDirectory() as folder:
        path = quantized_graph(drawn, mode, Path(folder))
        constants = {
            each.name: onnx.numpy_helper.to_array(each)
            for each in onnx.load(path).graph.initializer
        }
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {"x": drawn.x}

    def check() -> Checked:
        found = session.run(None, given)[0][drawn.checked]
        if mode == "fp32":
            return Checked(found, drawn.exact)
        expected, step = expected_of_onnxruntime(constants, drawn, mode)
        return Checked(found, expected, step * float(np.abs(drawn.weight).max()))

    return lambda: session.run(None, given), check


def quantized_graph(drawn: Drawn, mode: str, folder: Path) -> str:
    """Write the layer as a graph of ONNX, and quantize it unless the mode is fp32."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType
    from onnxruntime.quantization import quantize_dynamic as dynamic
    from onnxruntime.quantization import quantize_static as static

    plain, quantized = str(folder / "plain.onnx"), str(folder / "quantized.onnx")
    onnx.save(plain_graph(drawn), plain)
    if mode == "fp32":
        return plain
    common = {"weight_type": QuantType.QInt8, "per_channel": True}
    if mode == "dynamic":
        dynamic(plain, quantized, **common)
        return quantized

    class Reader(CalibrationDataReader):
        """Gives the samples one after the other, and then nothing."""

        samples = iter([{"x": drawn.calibration}])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.samples, None)

    # results in floats, as ours
    extra = {"OpTypesToExcludeOutputQuantization": ["Gemm"]}
    static(plain, quantized, Reader(), **common, extra_options=extra)
    return quantized


def plain_graph(drawn: Drawn) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    inputs, outputs = drawn.weight.shape
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [
            numpy_helper.from_array(drawn.weight, "weight"),
            numpy_helper.from_array(drawn.bias, "bias"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected_of_onnxruntime(
    constants: Mapping[str, Array], drawn: Drawn, mode: str
) -> tuple[Array, float]:
    """Give the result, and the step of the inputs."""
    x, bias = drawn.x, drawn.bias.astype(np.float64)
    scales = constants["weight_scale"]
    if mode == "dynamic":  # as the standard defines DynamicQuantizeLinear
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        step = (high - low) / np.float32(255)
        zero_point, lowest = np.clip(np.rint(-low / step), 0, 255), 0
    else:
        step, zero_point = constants["x_scale"], constants["x_zero_point"]
        lowest = np.iinfo(zero_point.dtype).min
        zero_point = zero_point.astype(int)
        bias = constants["bias_quantized"] * (np.float64(step) * scales)
    whole = np.clip(np.rint(x[drawn.checked] / step) + zero_point, lowest, lowest + 255)
    weight = constants["weight_quantized"]
    return multiply_exactly(whole - zero_point, step, weight, scales, bias), float(step)


# ---------------------------------------------------------------- who meets whom


@dataclass(frozen=True)
class Rival:
    """A side: how it is built, in which mode or for which engine, and the packages it needs."""

    name: str
    build: Build
    mode: str
    packages: tuple[str, ...]

    @property
    def missing(self) -> str:
        """Say what is not installed, or nothing."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed" if absent else ""


ONNX = ("onnx", "onnxruntime")
FAMILIES: dict[str, tuple[Rival, ...]] = {
    "dynamic": (
        Rival("PyTorch x86", build_torch, "x86", ("torch",)),
        Rival("PyTorch fbgemm", build_torch, "fbgemm", ("torch",)),
        Rival("PyTorch onednn", build_torch, "onednn", ("torch",)),
        Rival("torchao compiled", build_torchao, "dynamic", ("torch", "torchao")),
        Rival("ONNX Runtime", build_onnxruntime, "dynamic", ONNX),
    ),
    "static": (Rival("ONNX Runtime", build_onnxruntime, "static", ONNX),),
    "fp32": (
        Rival("PyTorch", build_torch, "fp32", ("torch",)),
        Rival("ONNX Runtime", build_onnxruntime, "fp32", ONNX),
    ),
}
"""Who does the same as our layer of that mode."""

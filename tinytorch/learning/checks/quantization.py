"""Checks of the lab on quantization."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.formats.affine import affine_parameters
from tinytorch.learning.checks.support import (
    PRODUCTS,
    Array,
    Rng,
    WatchedArray,
    array_of,
    close,
    number_text,
)
from tinytorch.learning.work import Work, expect
from tinytorch.models.adapter import adapter_for

NEAR = 1e-5
"""Scales in float32 or float64 differ by about 1e-7 of themselves."""
HALF = 0.5 + 1e-3
"""Half a step, and the rounding of float32 for numbers of up to 255 steps."""


def _range(rng: Rng) -> tuple[float, float]:
    return -float(rng.uniform(0.1, 3)), float(rng.uniform(0.1, 3))


def _limits(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _same(found: Any, wanted: Any) -> bool:
    """Return whether numbers are others but for rounding, however small they are."""
    return close(found / wanted, np.ones_like(wanted, float), tolerance=NEAR)


# ---------------------------------------------------------------- grid


def _grid(work: Work, low: float, high: float, bits: int = 8) -> tuple[float, int]:
    found = work.affine(low, high, bits)
    expect(
        isinstance(found, tuple) and len(found) == 2,
        "no-pair",
        "affine returns two numbers: the scale and the zero point",
    )
    scale, zero_point = found
    expect(
        isinstance(zero_point, (int, np.integer)) or float(zero_point).is_integer(),
        "zero-not-whole",
        f"the zero point is {number_text(float(zero_point))}; between two values there is no point "
        "of the grid, so zero would not be exact",
    )
    return float(scale), int(zero_point)


def check_affine(work: Work, rng: Rng) -> None:
    """The grid takes all steps between its values, for any number of bits."""
    for bits in (8, 8, 4, int(rng.integers(2, 8))):
        low, high = _range(rng)
        lowest, highest = _limits(bits)
        scale, zero_point = _grid(work, low, high, bits)
        wanted = (high - low) / (highest - lowest)
        expect(
            not _same(scale, (high - low) / 2**bits),
            "off-by-one-step",
            f"{2**bits} values have {2**bits - 1} steps between them; with {2**bits} the highest "
            "number of the range has no value",
        )
        expect(
            bits == 8 or not _same(scale, (high - low) / 255),
            "bits-ignored",
            f"for {bits} bits you still count with 255 steps",
        )
        expect(
            _same(scale, wanted),
            "wrong-scale",
            f"for {low:.3f} to {high:.3f} and {bits} bits the scale is {number_text(scale)}: how "
            "long is the range, and how many steps are there?",
        )
        exact = lowest - low / wanted
        expect(
            zero_point != round(exact - lowest) or zero_point == round(exact),
            "unsigned-grid",
            f"your zero point counts from 0; the values begin at {lowest}",
        )
        expect(
            abs(zero_point - exact) < HALF,
            "wrong-zero-point",
            f"the lowest value, {lowest}, should stand for {low:.3f}; which value is then 0? "
            f"With {zero_point} it stands for {(lowest - zero_point) * wanted:.3f}",
        )


def check_zero_in_range(work: Work, rng: Rng) -> None:
    """The range is widened to contain zero, and one of nothing but zero works, too."""
    for sign in (1, -1):
        near, far = sorted(sign * float(each) for each in rng.uniform([1, 4], [2, 6]))
        scale, zero_point = _grid(work, near, far)
        lowest, highest = _limits(8)
        expect(
            lowest <= zero_point <= highest,
            "zero-outside",
            f"for {near:.2f} to {far:.2f} zero gets the value {zero_point}, which is none of "
            f"{lowest} to {highest}: the range has to contain 0",
        )
        wanted = affine_parameters(near, far)
        expect(
            _same(scale, wanted[0]) and zero_point == wanted[1],
            "wrong-widening",
            f"{near:.2f} to {far:.2f} is widened to a range with 0 at one end, and no more",
        )
    with np.errstate(all="ignore"):
        scale, zero_point = _grid(work, 0.0, 0.0)
    expect(
        (scale, zero_point) == (1.0, 0),
        "empty-range",
        f"a range of nothing but 0 has scale 1.0 and zero point 0, not {scale} and {zero_point}",
    )


def check_quantize(work: Work, rng: Rng) -> None:
    """Numbers become the nearest value; outside of the range the first or the last."""
    for bits in (8, 4):
        lowest, highest = _limits(bits)
        low, high = _range(rng)
        scale, zero_point = (each.item() for each in affine_parameters(low, high, bits=bits))
        inside = rng.uniform(low, high, (3, 50)).astype(np.float32)
        found = array_of(
            work.quantize(inside, scale, zero_point, bits), "quantize", (3, 50), np.int8
        )
        exact = inside / scale + zero_point
        clipped = np.clip(exact, lowest, highest)
        expect(
            not (found == np.clip(np.floor(exact), lowest, highest)).all()
            and not (found == np.clip(np.trunc(inside / scale) + zero_point, lowest, highest)).all()
            and not (found == np.clip(np.trunc(exact), lowest, highest)).all(),
            "truncated",
            "you cut off what is behind the point; the nearest value is asked for, so round",
        )
        expect(
            (np.abs(found - clipped) <= HALF).all(),
            "wrong-values",
            f"{number_text(float(inside[0, 0]))} with scale {scale:.4g} and zero point "
            f"{zero_point} is not {found[0, 0]}",
        )
        zero = work.quantize(np.zeros(2, np.float32), scale, zero_point, bits)
        expect((np.asarray(zero) == zero_point).all(), "zero-inexact", "0 is not the zero point")
        outside = np.array([low - 2, high + 2, 9 * low, 9 * high], np.float32)
        with np.errstate(all="ignore"):
            beyond = np.asarray(work.quantize(outside, scale, zero_point, bits))
        expect(
            (beyond == [lowest, highest, lowest, highest]).all(),
            "wraps-around",
            f"numbers beyond both ends become {beyond.tolist()}; they should be {lowest} and "
            f"{highest}: clip them before they become int8",
        )


def check_round_trip(work: Work, rng: Rng) -> None:
    """The round trip is off by at most half a step, and zero comes back as zero."""
    for sides in ((-1, 1), (-1, 0), (0, 1)):
        low, high = (side * float(rng.uniform(0.5, 3)) for side in sides)
        scale, zero_point = _grid(work, low, high)
        x = rng.uniform(low, high, 500).astype(np.float32)
        x[:3] = 0, low, high
        values = work.quantize(x, scale, zero_point)
        with np.errstate(all="ignore"):
            found = array_of(work.dequantize(values, scale, zero_point), "dequantize", (500,), "f4")
        expect(found[0] == 0, "zero-inexact", f"0 comes back as {found[0]:.4g}; it must be exact")
        off = np.abs(found - x) / scale
        expect(
            off.max() < 100,
            "int8-overflow",
            f"{number_text(float(x[off.argmax()]))} comes back as {found[off.argmax()]:.4g}: a "
            "difference of two int8 may need 9 bits, and wraps around in 8",
        )
        expect(
            off.max() <= HALF,
            "more-than-half-a-step",
            f"the round trip is off by {off.max():.2f} steps, at {x[off.argmax()]:.4g}",
        )


# ---------------------------------------------------------------- channels


def _quantized_weight(work: Work, weight: Array, *settings: Any) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        found = work.quantize_weight(weight, *settings)
    expect(
        isinstance(found, tuple) and len(found) == 2,
        "no-pair",
        "quantize_weight returns two arrays: the values and the scales",
    )
    values, scales = (np.asarray(each) for each in found)
    return array_of(values, "the array of values", weight.shape, np.int8), scales


def _weight(rng: Rng) -> Array:
    """Return a weight whose columns have very different sizes."""
    inputs, outputs = (int(each) for each in rng.integers([20, 5], [30, 9]))
    sizes = 10.0 ** rng.permutation(np.linspace(-2, 0, outputs))
    # The largest is negative in every column, and only just the largest.
    weight = rng.uniform(-1, 1, (inputs, outputs))
    weight[rng.integers(inputs)] = -1.2
    return (weight * sizes).astype(np.float32)


def check_channels(work: Work, rng: Rng) -> None:
    """Each output has a scale of its own, from its largest weight in absolute value."""
    for bits in (8, 4):
        weight = _weight(rng)
        highest = 2 ** (bits - 1) - 1
        values, scales = _quantized_weight(work, weight, bits)
        expect(
            scales.shape != (len(weight),),
            "wrong-axis",
            f"there are {len(weight)} scales, one per input; the columns are the outputs",
        )
        expect(
            scales.ndim > 0, "one-scale", "there is one scale for all; each output needs its own"
        )
        array_of(scales, "the array of scales", (weight.shape[1],), np.float32)
        expect(
            not _same(scales, np.full_like(scales, np.abs(weight).max() / highest)),
            "one-scale",
            "all scales are the same: that of the largest weight of all columns",
        )
        _check_symmetric(scales, weight, highest)
        off = np.abs(values * scales.astype(np.float64) - weight) / scales
        expect(
            off.max() <= HALF,
            "wrong-values",
            f"a weight is off by {off.max():.2f} steps of its own scale",
        )


def _check_symmetric(scales: Array, weight: Array, highest: int) -> None:
    largest = np.abs(weight).max(axis=0)
    expect(
        not _same(scales, weight.max(axis=0) / highest),
        "sign-forgotten",
        "the scales come from the largest weights; a very negative one counts as much",
    )
    expect(
        not any(_same(scales, largest / other) for other in (highest + 1, highest + 0.5)),
        "off-by-one-step",
        f"the largest weight should get the value {highest} or -{highest}",
    )
    expect(
        highest == 127 or not _same(scales, largest / 127),
        "bits-ignored",
        f"with fewer bits the values reach up to {highest}, and you count with 127",
    )
    expect(
        _same(scales, largest / highest),
        "wrong-scales",
        f"a column whose largest weight is {largest[0]:.4g} has the scale {scales[0]:.4g}",
    )


def check_one_scale(work: Work, rng: Rng) -> None:
    """With per_channel=False there is one scale, from the largest weight of all."""
    weight = _weight(rng)
    values, scales = _quantized_weight(work, weight, 8, False)
    expect(
        scales.shape == (),
        "always-per-channel",
        f"with per_channel=False the scales have the shape {scales.shape}; it should be ()",
    )
    expect(
        _same(scales, np.abs(weight).max() / 127),
        "wrong-scales",
        f"the largest weight is {np.abs(weight).max():.4g}, and the scale {float(scales):.4g}",
    )
    off = np.abs(values * scales.astype(np.float64) - weight) / scales
    expect(off.max() <= HALF, "wrong-values", f"a weight is off by {off.max():.2f} steps")


def check_zero_column(work: Work, rng: Rng) -> None:
    """A column of zeros has the scale 1 and the value 0."""
    weight = _weight(rng)
    column = int(rng.integers(weight.shape[1]))
    weight[:, column] = 0
    values, scales = _quantized_weight(work, weight)
    expect(
        scales[column] == 1 and np.isfinite(scales).all(),
        "zero-column",
        f"a column of nothing but zeros has the scale {scales[column]}: what is 0 / 0?",
    )
    expect(not values[:, column].any(), "zero-column", "zeros have other values than 0")


# ---------------------------------------------------------------- calibrate


def _batches(rng: Rng, low: float = -1.0, high: float = 1.0) -> list[Array]:
    """Return batches of different sizes; the first has the largest numbers."""
    rows = rng.permutation([4, 11, 30])
    factors = (2.0, 1.0, 0.5)
    return [
        (factor * rng.uniform(low, high, (int(count), 20))).astype(np.float32)
        for factor, count in zip(factors, rows, strict=True)
    ]


def _found_range(work: Work, *arguments: Any) -> tuple[float, float]:
    found = work.calibrate(*arguments)
    expect(
        isinstance(found, (tuple, list, np.ndarray)) and len(found) == 2,
        "no-pair",
        "calibrate returns two numbers: low and high",
    )
    return float(found[0]), float(found[1])


def check_min_max(work: Work, rng: Rng) -> None:
    """A percentile of 100 is everything that was seen in all batches, and contains zero."""
    batches = _batches(rng)
    found = _found_range(work, batches)
    everything = np.concatenate([each.ravel() for each in batches])
    for place in (0, -1):
        one = batches[place]
        expect(
            not close(found, (one.min(), one.max()))
            or (one.min() == everything.min() and one.max() == everything.max()),
            "one-batch",
            f"that is the range of the {'first' if place == 0 else 'last'} batch alone",
        )
    means = [np.mean([function(each) for each in batches]) for function in (np.min, np.max)]
    expect(
        not close(found, means, tolerance=NEAR),
        "mean-of-batches",
        "that is the mean of the extremes of the batches; then some of what was seen lies outside",
    )
    expect(
        close(found, (everything.min(), everything.max())),
        "wrong-range",
        f"the numbers go from {everything.min():.4g} to {everything.max():.4g}, and your range is "
        f"{found[0]:.4g} to {found[1]:.4g}",
    )
    for low, high in ((0.5, 1.0), (-1.0, -0.5)):
        one_sided = _batches(rng, low, high)
        found = _found_range(work, one_sided)
        expect(
            found[0] <= 0 <= found[1],
            "no-zero",
            f"{found[0]:.3g} to {found[1]:.3g} does not contain 0",
        )
        ends = [function([function(each) for each in one_sided]) for function in (np.min, np.max)]
        wanted = min(float(ends[0]), 0.0), max(float(ends[1]), 0.0)
        expect(close(found, wanted), "wrong-range", "a range on one side of 0 begins or ends there")


def check_percentile(work: Work, rng: Rng) -> None:
    """A percentile leaves out its share of all numbers at both ends, over all batches together."""
    for percentile in (99.0, float(rng.uniform(90, 98))):
        batches = _batches(rng)
        numbers = np.concatenate([each.ravel() for each in batches])
        found = _found_range(work, batches, percentile)
        low, high = np.percentile(numbers, [100 - percentile, percentile])
        expect(
            not close(found, (numbers.min(), numbers.max())),
            "percentile-ignored",
            f"with a percentile of {percentile:.1f} the range is still everything that was seen",
        )
        each_batch = np.array(
            [np.percentile(each, [100 - percentile, percentile]) for each in batches]
        )
        per_batch = (
            each_batch.mean(axis=0),
            (each_batch[:, 0].min(), each_batch[:, 1].max()),
            each_batch[-1],
        )
        expect(
            not any(close(found, each, tolerance=NEAR) for each in per_batch),
            "per-batch",
            "you take percentiles of single batches; large and small batches count alike then",
        )
        expect(
            not close(found, np.percentile(numbers, [50 - percentile / 2, 50 + percentile / 2])),
            "half-the-share",
            f"({100 - percentile:.1f})% are left out at each end, not at both together",
        )
        expect(
            close(found[1], high) == close(found[0], low),
            "one-side",
            "one end is right, and the other one is not: leave out as many on both sides",
        )
        expect(
            close(found, (low, high), tolerance=1e-3),
            "wrong-percentile",
            f"{percentile:.1f} of 100 numbers lie below {high:.4g}, and your range ends at "
            f"{found[1]:.4g}",
        )


# ---------------------------------------------------------------- integer


class _Product:
    """A case of a product: what goes in, and what has to come out."""

    def __init__(self, rng: Rng, *, zero_point: int, reach: int = 127, inputs: int = 0) -> None:
        rows, outputs = (int(each) for each in rng.integers(2, 7, 2))
        inputs = inputs or int(rng.integers(20, 40))
        self.values = rng.integers(-reach, reach + 1, (rows, inputs)).astype(np.int8)
        self.weights = rng.integers(-reach, reach + 1, (inputs, outputs)).astype(np.int8)
        self.scale, self.zero_point = float(rng.uniform(0.05, 0.2)), zero_point
        self.scales = rng.uniform(0.1, 0.5, outputs).astype(np.float32)
        self.bias = rng.uniform(-1, 1, outputs).astype(np.float32)

    def product(self, *, zero_point: int | None = None, sums: Array | None = None) -> Array:
        """Return the result, or that with another zero point or other sums."""
        zero = self.zero_point if zero_point is None else zero_point
        wide = self.values.astype(np.int64), self.weights.astype(np.int64)
        sums = wide[1].sum(axis=0) if sums is None else sums
        total = wide[0] @ wide[1] - zero * sums
        return total * (self.scale * self.scales.astype(np.float64)) + self.bias

    def found(self, work: Work, *, watch: list[Any] | None = None) -> Array:
        """Return what a learner's function makes of it."""
        arrays = [self.values.copy(), self.weights.copy()]
        if watch is not None:
            arrays = [WatchedArray.of(each, watch) for each in arrays]
        with np.errstate(all="ignore"):
            found = work.integer_linear(
                arrays[0], self.scale, self.zero_point, arrays[1], self.scales, self.bias
            )
        shape = len(self.values), self.weights.shape[1]
        return np.asarray(array_of(found, "integer_linear", shape, np.float32))

    def near(self, found: Array, wanted: Array) -> bool:
        return close(found, wanted, tolerance=NEAR)


def check_small_product(work: Work, rng: Rng) -> None:
    """With small values and no zero point the product is scaled, and the bias is added."""
    case = _Product(rng, zero_point=0, reach=1)
    found, right = case.found(work), case.product()
    expect(
        not case.near(found, right - case.bias), "bias-missing", "the bias is missing; it is added"
    )
    unscaled = case.bias * case.scale * case.scales.astype(np.float64)
    expect(
        not case.near(found, right - case.bias + unscaled),
        "bias-scaled",
        "the bias is in floats already, and you have scaled it",
    )
    expect(
        not case.near(found, (right - case.bias) / case.scale + case.bias)
        and not case.near(found, (right - case.bias) / case.scales + case.bias),
        "scale-missing",
        "one of the two scales is missing: that of the inputs, and one per output",
    )
    expect(case.near(found, right), "wrong-product", "values of -1 to 1, and no zero point")


def check_zero_point(work: Work, rng: Rng) -> None:
    """The zero point is corrected for by the sum of the weights of each output."""
    for _ in range(2):
        case = _Product(rng, zero_point=int(rng.integers(3, 9)), reach=1)
        found, weights = case.found(work), case.weights.astype(np.int64)
        wrong = (
            ("zero-point-missing", "it is as if the zero point were 0", case.product(zero_point=0)),
            (
                "zero-point-added",
                "you add the correction; x is s * (q - z), so it is subtracted",
                case.product(zero_point=-case.zero_point),
            ),
            (
                "sum-of-all",
                "you use the sum of all weights; each output has a sum of its own",
                case.product(sums=weights.sum(keepdims=True)),
            ),
            (
                "sums-missing",
                "you subtract the zero point once; it meets every weight of an output",
                case.product(sums=np.ones(weights.shape[1], np.int64)),
            ),
            (
                "sums-of-inputs",
                "you use the sums of the inputs; the zero point belongs to the inputs, so it "
                "meets the weights",
                case.product(sums=case.values.astype(np.int64).sum(axis=1, keepdims=True)),
            ),
        )
        if case.near(found, case.product()):
            continue
        for code, words, result in wrong:
            expect(not case.near(found, result), code, words)
        expect(
            False,
            "wrong-zero-point",
            "without a zero point it was right; multiply (q - z) * v out on paper",
        )


def check_accumulation(work: Work, rng: Rng) -> None:
    """Sums are of int32: exact for the largest values, and for thousands of inputs."""
    for inputs in (40, 3000):
        case = _Product(rng, zero_point=int(rng.integers(-120, -90)), inputs=inputs)
        case.values[0], case.weights[:, 0] = 127, 127
        found = case.found(work)
        expect(
            case.near(found, case.product()),
            "overflow",
            f"small values were right, and with values up to 127 and {inputs} inputs the sums are "
            "wrong: 127 * 127 needs 15 bits, and thousands of them need more",
        )
    calls: list[tuple[str, Any]] = []
    _Product(rng, zero_point=3).found(work, watch=calls)
    seen = [dtype for name, dtype in calls if name in PRODUCTS]
    floats = [each for each in seen if each.kind == "f"]
    expect(
        not floats,
        "float-product",
        f"the product is one of {', '.join(map(str, floats))}: the point of it is to multiply and "
        "add integers, and to make floats of the sums",
    )
    wide = [each for each in seen if each != np.int32]
    expect(
        not wide,
        "not-int32",
        f"the sums are of {', '.join(map(str, wide))}; int32 is enough, and what processors have",
    )


# ---------------------------------------------------------------- quantized


def _net(rng: Rng, *, shift: float = 0.0) -> Sequential:
    """Return a network whose layers see very different ranges."""
    widths = [int(each) for each in rng.integers(8, 20, 4)]
    net = Sequential(
        Linear(widths[0], widths[1], rng=rng),
        ReLU(),
        Linear(widths[1], widths[2], rng=rng),
        ReLU(),
        Linear(widths[2], widths[3], rng=rng),
    )
    for layer, factor in zip(net.layers[::2], (20, 0.2, 1), strict=True):
        layer.weight.data = layer.weight.data * np.float32(factor) + np.float32(shift)
    return net


def _inputs(rng: Rng, net: Sequential, rows: int = 40) -> Array:
    return rng.uniform(-1, 2, (rows, net.layers[0].in_features)).astype(np.float32)


def _expected(linear: Linear, x: Array, low: float, high: float) -> Array:
    """Return what a layer of 8 bits gives, computed in float64 from the project's grid."""
    scale, zero_point = (each.item() for each in affine_parameters(low, high))
    values = np.clip(np.rint(x / scale) + zero_point, -128, 127) - zero_point
    weight = linear.weight.data.astype(np.float64)
    steps = np.abs(weight).max(axis=0) / 127
    found = values * scale @ (np.rint(weight / steps) * steps)
    bias = 0.0 if linear.bias is None else linear.bias.data
    return np.asarray(found + bias)


def check_layer(work: Work, rng: Rng) -> None:
    """A layer gives what integers of 8 bits give, and clips what lies outside of its range."""
    inputs, outputs = (int(each) for each in rng.integers(10, 30, 2))
    linear = Linear(inputs, outputs, rng=rng)
    columns = rng.permutation(np.geomspace(0.003, 1, outputs)).astype(np.float32)
    linear.weight.data, linear.bias = linear.weight.data * columns, Parameter(0.1 * columns)
    before = linear.weight.data.copy()
    low, high = -float(rng.uniform(0.5, 1)), float(rng.uniform(1, 2))
    layer = work.Int8Linear(linear, low, high)
    x = rng.uniform(low, high, (7, inputs)).astype(np.float32)
    wide = 2 * x
    for given, code, words in (
        (x, "wrong-layer", "its outputs are not those of weights and inputs of 8 bits"),
        (wide, "not-clipped", "inputs outside of the range should be clipped to it"),
    ):
        found = layer.forward(Tensor(given))
        expect(isinstance(found, Tensor), "no-tensor", "forward returns a Tensor")
        wanted = _expected(linear, given, low, high)
        array = array_of(found.data, "the output", wanted.shape, np.float32)
        plain = given @ before + 0.1 * columns  # and the bias
        expect(
            not close(array, plain, tolerance=1e-6),
            "float-layer",
            "the outputs are those of the float layer, to the last digit: nothing was quantized",
        )
        # A step of the inputs may be decided otherwise by the last digit of a scale.
        limit = 0.05 * np.abs(wanted).max(axis=0)
        expect((np.abs(array - wanted).max(axis=0) < limit).all(), code, words)
    expect(
        (linear.weight.data == before).all(), "model-changed", "the given layer was changed by it"
    )


def check_bytes(work: Work, rng: Rng) -> None:
    """A layer holds a byte per weight, four per scale and bias, and no float weight."""
    inputs, outputs = (int(each) for each in rng.integers(50, 90, 2))
    layer = work.Int8Linear(Linear(inputs, outputs, rng=rng), -1.0, 1.0)
    with no_grad():
        layer.forward(Tensor(np.zeros((2, inputs), np.float32)))
    counted = adapter_for(layer).held_bytes(layer)
    hidden = [name for name, each in vars(layer).items() if _is_wide(each, inputs * outputs)]
    expect(
        not hidden,
        "holds-floats",
        f"`{', '.join(hidden)}` still has the weight in more than 8 bits: nothing is saved",
    )
    least = inputs * outputs + 8 * outputs
    expect(
        counted >= least,
        "not-counted",
        f"{counted:,} bytes are counted for {inputs * outputs:,} weights: hold the values, scales "
        "and bias as Tensor attributes",
    )
    expect(
        counted <= least + 4 * outputs + 64,
        "too-many-bytes",
        f"{counted:,} bytes are held; a byte per weight, four per scale and bias are {least:,}",
    )


def _is_wide(held: Any, weights: int) -> bool:
    """Return whether something is a float layer, or as many numbers of more than a byte."""
    array = held.data if isinstance(held, Tensor) else held
    if not isinstance(array, np.ndarray):
        return isinstance(held, Linear)
    return array.size >= weights and array.dtype.itemsize > 1


def check_model(work: Work, rng: Rng) -> None:
    """Every Linear is replaced, calibrated with its own inputs, and the given model stays."""
    net = _net(rng)
    x = _inputs(rng, net)
    before = copy.deepcopy(net)
    found = work.quantize_mlp(net, [x[:10], x[10:]])
    expect(
        isinstance(found, Sequential) and len(found.layers) == len(net.layers),
        "wrong-layers",
        f"a Sequential of {len(net.layers)} layers is expected",
    )
    _check_unchanged(net, before)
    left = [n for n, each in enumerate(found.layers) if isinstance(each, Linear)]
    expect(not left, "layer-left", f"layers {left} are still Linear")
    _check_ranges(work, found, net, x)
    with no_grad():
        wanted, got = net(Tensor(x)).data, found(Tensor(x)).data
    off = np.abs(got - wanted).max() / np.abs(wanted).max()
    expect(off < 0.05, "wrong-model", f"the outputs differ by {off:.0%} of the largest one")


def _check_unchanged(net: Sequential, before: Sequential) -> None:
    same = len(net.layers) == len(before.layers) and all(
        type(one) is type(other) for one, other in zip(net.layers, before.layers, strict=True)
    )
    same = same and all(
        np.array_equal(one.data, other.data)
        for one, other in zip(net.parameters(), before.parameters(), strict=True)
    )
    expect(same, "model-changed", "the given model was changed; make a new Sequential")


def _check_ranges(work: Work, found: Sequential, net: Sequential, x: Array) -> None:
    """Each layer is tested alone with the inputs that it gets in the float model."""
    seen = Tensor(x)
    first = x.min(), x.max()
    for number, layer in enumerate(net.layers):
        if isinstance(layer, Linear):
            low, high = float(seen.data.min()), float(seen.data.max())
            wanted = _expected(layer, seen.data, min(low, 0.0), max(high, 0.0))
            got = found.layers[number].forward(seen).data
            off = float(np.abs(got - wanted).max()) / float(np.abs(wanted).max())
            if off > 0.05:
                by_first = _expected(layer, seen.data, *map(float, first))
                is_first = np.abs(got - by_first).max() < 0.05 * np.abs(by_first).max()
                expect(
                    not is_first,
                    "range-of-the-model",
                    f"layer {number} has the range of the inputs of the model, {first[0]:.2f} to "
                    f"{first[1]:.2f}; it gets {low:.2f} to {high:.2f}",
                )
                expect(
                    False,
                    "wrong-range",
                    f"layer {number} gets {low:.2f} to {high:.2f}; is this how it was calibrated?",
                )
        with no_grad():
            seen = layer(seen)


def check_model_percentile(work: Work, rng: Rng) -> None:
    """The percentile reaches every layer: one wild input does not set the step of all."""
    net = _net(rng)
    x = _inputs(rng, net, rows=400)
    wild = x.copy()
    wild[3, 2] = 1000.0
    with no_grad():
        wanted = net(Tensor(x)).data
        off = {
            percentile: np.abs(
                work.quantize_mlp(net, [wild], percentile)(Tensor(x)).data - wanted
            ).mean()
            for percentile in (100.0, 99.5)
        }
    expect(
        off[99.5] < off[100.0] / 2,
        "percentile-ignored",
        "with one input of 1000 in the calibration data, a percentile of 99.5 should be far better "
        f"than everything that was seen; the mean errors are {off[99.5]:.3g} and {off[100.0]:.3g}",
    )


# ---------------------------------------------------------------- limits


def check_pack(work: Work, rng: Rng) -> None:
    """Two values take one byte, and come back with their signs, also where their number is odd."""
    for shape in ((4, 6), (5, 7), (3,)):
        values = rng.integers(-8, 8, shape).astype(np.int8)
        values.flat[:2] = -8, 7
        kept = values.copy()
        packed = np.asarray(work.pack(values))
        size = (values.size + 1) // 2
        expect(
            packed.dtype.itemsize == 1 and packed.nbytes != values.size,
            "not-packed",
            f"{values.size} values of 4 bits take {packed.nbytes} bytes; two share one",
        )
        array_of(packed, "pack", (size,), np.uint8)
        expect((values == kept).all(), "inputs-changed", "pack has changed the values")
        found = np.asarray(work.unpack(packed, shape))
        expect(
            found.shape == shape, "wrong-shape", f"unpack gives {found.shape} instead of {shape}"
        )
        expect(
            not (found.astype(int) == values.astype(int) % 16).all(),
            "sign-lost",
            "negative values come back 16 too large: what does a nibble of 15 stand for?",
        )
        swapped = values.ravel()[: values.size // 2 * 2].reshape(-1, 2)[:, ::-1].ravel()
        expect(
            not (found.ravel()[: swapped.size] == swapped).all(),
            "swapped",
            "the two values of each byte come back in the other order",
        )
        expect((found == values).all(), "wrong-values", f"{values.ravel()[:4]} does not come back")
        expect(found.dtype == np.int8, "wrong-dtype", f"unpack gives {found.dtype}, not int8")


def check_best_fit(work: Work, rng: Rng) -> None:
    """The most accurate option within both limits is chosen, or None."""
    for _ in range(3):
        base = float(rng.uniform(90, 95))
        rows = {
            "best": (300, 9.0, base + 3),
            "quick": (290, 1.0, base + 2),
            "small": (80, 8.0, base + 1),
            "both": (100, 2.0, base + 0.5),
            "tiny": (40, 0.5, base - 20),
            "twin": (95, 1.9, base + 0.5),
        }
        names = [str(each) for each in rng.permutation(list(rows))]
        options = {
            name: dict(zip(("bytes", "ms", "accuracy"), rows[name], strict=True)) for name in names
        }
        wanted = (
            (1000, 10.0, "best", "wrong-choice"),
            (100, 100.0, "small", "memory-ignored"),
            (1000, 1.5, "quick", "latency-ignored"),
            (100, 2.0, "twin", "wrong-choice"),
            (300, 9.0, "best", "limit-excluded"),
            (30, 10.0, None, "nothing-fits"),
        )
        for max_bytes, max_ms, name, code in wanted:
            found = work.best_fit(options, max_bytes, max_ms)
            if found == name:
                continue
            expect(name is not None, code, f"nothing keeps to the limits, and you take {found!r}")
            code = "not-most-accurate" if found == "tiny" else code
            code = "tie" if (found, name) == ("both", "twin") else code
            expect(
                False,
                code,
                f"for {max_bytes} bytes and {max_ms} ms you take {found!r} of {options}",
            )


CHECKS = {
    "grid": (check_affine, check_zero_in_range, check_quantize, check_round_trip),
    "channels": (check_channels, check_one_scale, check_zero_column),
    "calibrate": (check_min_max, check_percentile),
    "integer": (check_small_product, check_zero_point, check_accumulation),
    "quantized": (check_layer, check_bytes, check_model, check_model_percentile),
    "limits": (check_pack, check_best_fit),
}

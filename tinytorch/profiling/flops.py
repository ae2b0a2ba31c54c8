"""Counting the floating-point operations of a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.costs import cost_of
from tinytorch.models.records import Call, OpRecord, Recording, TensorSpec
from tinytorch.models.workload import call_model
from tinytorch.profiling.timer import check_count, refuse_lazy
from tinytorch.showing import profiling_reports


def count_flops(model: Any, *inputs: Any, backward: bool = False, **settings: Any) -> int:
    """Count the FLOPs of one call on exactly these inputs: contractions, two per MAC.

    `backward` adds the backward pass of a scalar loss. `settings` go to the model.
    """
    recording = record_call(model, *inputs, backward=backward, **settings)
    return sum(record.flops for record in recording.operations)


def record_call(model: Any, *inputs: Any, backward: bool = False, **settings: Any) -> Recording:
    """Run a model once, forward or forward and backward, and record what it did."""
    arguments = (*inputs, *settings.values())
    adapter = adapter_for(model, arguments)
    device = adapter.device(model, arguments, names=tuple(settings))

    def forward() -> Any:
        return call_model(model, *inputs, **settings)

    def both() -> Any:
        loss = adapter.scalar_loss(forward())
        adapter.backward(loss)
        return loss

    with adapter.preserving(model), adapter.naming_failures(model):
        if backward:
            return adapter.record(model, both, device=device, inputs=arguments)
        with adapter.without_gradients():
            return adapter.record(model, forward, device=device, inputs=arguments)


# ---------------------------------------------------------------- inputs for a model from what the
# classic functions take: a shape, an input, or several


def example_inputs(model: Any, input_shape: Any) -> tuple[Any, ...]:
    """Make inputs of a shape, or of each of several shapes: numbers, or tokens for embeddings."""
    check_model(model)
    return inputs_of_shapes(model, checked_shapes(input_shape))


def inputs_of_shapes(model: Any, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    """Make an input of each shape: normal numbers, or tokens where the model embeds them."""
    adapter = adapter_for(model)
    return tuple(adapter.example(shape, model) for shape in shapes)


def checked_shapes(input_shape: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all arguments: `input_shape` is one shape, or one per argument."""
    several = isinstance(input_shape, (tuple, list)) and any(
        isinstance(each, (tuple, list)) for each in input_shape
    )
    return tuple(_checked(shape) for shape in (input_shape if several else (input_shape,)))


def as_inputs(x: Any) -> tuple[Any, ...]:
    """Return the arguments of a call: a tuple is several, everything else is one."""
    return x if isinstance(x, tuple) else (x,)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an input; () if it has none."""
    return tuple(int(length) for length in getattr(x, "shape", ()))


def check_model(model: Any) -> None:
    """Raise SettingError unless this is a model whose call does its work before returning.

    A model can be called, or has `forward`.
    """
    if isinstance(model, type) or not (callable(model) or hasattr(model, "forward")):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise SettingError(
            f"{what} is no model: give an object that can be called or has forward()"
        )
    refuse_lazy(model)


def _checked(shape: Any) -> tuple[int, ...]:
    lengths = tuple(shape) if hasattr(shape, "__iter__") else ()
    if not lengths:
        raise SettingError(f"input_shape={shape!r}; give a tuple such as (32, 784)")
    for length in lengths:
        if isinstance(length, bool) or not hasattr(length, "__index__") or length < 1:
            raise SettingError(f"input_shape={lengths}; every length is a whole number from 1 on")
    return tuple(int(length) for length in lengths)


# ---------------------------------------------------------------- FLOPCounter:
# multiply-accumulates of layers by their sizes, and of models by running them

CONVENTIONS = {
    "macs": "a multiply-accumulate counts once",
    "flops": "a multiply-accumulate counts twice: a multiplication and an addition",
}
Size = int | tuple[int, int]

# Kind of operation -> which of its inputs is added to the product.
ADDED_INPUT = {
    "linear": 2,
    "conv2d": 2,
    "aten.linear": 2,
    "aten.convolution": 2,
    "aten._convolution": 2,
    "aten.mkldnn_convolution": 2,
    "aten.addmm": 0,
    "aten._addmm_activation": 0,
    "aten.addmv": 0,
    "aten.baddbmm": 0,
}
# Whole layers in one kernel: their products are counted, the biases inside are not to be seen.
WITH_HIDDEN_BIASES = {
    "aten._native_multi_head_attention",
    "aten._transformer_encoder_layer_fwd",
    "aten.mkldnn_rnn_layer",
    "aten._cudnn_rnn",
    "aten.miopen_rnn",
}


class FLOPCounter:
    """Count the work of layers from their sizes (`count_linear`, ...) or of a model that runs.

    `convention` says how often a multiply-accumulate counts: once ("macs") or twice ("flops").
    Adding a bias counts once per element in both. `operation_counts` and `layer_breakdown` sum up
    everything counted since the last :meth:`reset`; ``total_flops`` is multiplications plus
    additions in the chosen convention. `other_flops` is elementwise, normalisation and reduction
    work of models, which is in no total. `not_counted` maps what has no formula to its calls.

    >>> FLOPCounter().count_linear(100, 50, batch_size=32) == 32 * 100 * 50 + 32 * 50
    True
    """

    def __init__(self, convention: str = "macs") -> None:
        if convention not in CONVENTIONS:
            raise SettingError(f"convention={convention!r}; there are {', '.join(CONVENTIONS)}")
        self.convention = convention
        self.reset()

    def reset(self) -> None:
        """Forget everything that was counted."""
        self.operation_counts = {"multiply": 0, "add": 0, "total_flops": 0}
        self.layer_breakdown: dict[str, int] = {}
        self.other_flops = 0
        self.not_counted: dict[str, int] = {}
        self.notes: list[str] = []

    # ------------------------------------------------------------ layers by their sizes

    def count_linear(
        self, input_features: int, output_features: int, batch_size: int = 1, *, bias: bool = True
    ) -> int:
        """Count a linear layer. All rows that it is applied to are the batch, also tokens."""
        _check_sizes(
            input_features=input_features, output_features=output_features, batch_size=batch_size
        )
        products = _linear_macs(batch_size, input_features, output_features)
        return self._add("linear", products, batch_size * output_features if bias else 0)

    def count_conv2d(
        self,
        input_height: int,
        input_width: int,
        input_channels: int,
        output_channels: int,
        kernel_size: Size,
        batch_size: int = 1,
        stride: Size = 1,
        padding: Size = 0,
        groups: int = 1,
        dilation: Size = 1,
        *,
        bias: bool = True,
    ) -> int:
        """Count a convolution: every output position meets every tap, also those on padding."""
        _check_sizes(
            input_height=input_height,
            input_width=input_width,
            input_channels=input_channels,
            output_channels=output_channels,
            batch_size=batch_size,
            groups=groups,
        )
        if input_channels % groups or output_channels % groups:
            raise SettingError(
                f"groups={groups} does not divide the channels, {input_channels} and "
                f"{output_channels}"
            )
        kernel = _pair("kernel_size", kernel_size, at_least=1)
        strides = _pair("stride", stride, at_least=1)
        paddings = _pair("padding", padding, at_least=0)
        dilations = _pair("dilation", dilation, at_least=1)
        height, width = (
            _output_length(*sizes)
            for sizes in zip(
                (input_height, input_width), kernel, strides, paddings, dilations, strict=True
            )
        )
        output = (batch_size, output_channels, height, width)
        weight = (output_channels, input_channels // groups, *kernel)
        image = (batch_size, input_channels, input_height, input_width)
        products = _macs("conv2d", (image, weight), output)
        return self._add("conv2d", products, _spec(output).size if bias else 0)

    def count_attention(
        self,
        sequence_length: int | None = None,
        d_model: int | None = None,
        batch_size: int = 1,
        *,
        seq_len: int | None = None,
        bias: bool = True,
    ) -> int:
        """Count self-attention: four projections of every token, scores and weighted sum.

        `seq_len` is another name for `sequence_length`. Softmax and scaling are elementwise work
        and not in it.
        """
        length = _one_of(sequence_length=sequence_length, seq_len=seq_len)
        if d_model is None:
            raise SettingError("d_model is missing; give the width of the attention layer")
        _check_sizes(sequence_length=length, d_model=d_model, batch_size=batch_size)
        total = self._add("attention", *_attention(length, d_model, batch_size, bias))
        doubled = self._weigh(*_attention(2 * length, d_model, batch_size, bias))
        self.notes.append(
            f"attention of {length} tokens of width {d_model}: "
            f"twice the sequence costs {doubled / total:.2f}x"
        )
        return total

    # ------------------------------------------------------------ models by running them

    def count_model_forward(self, model: Any, input_shape: Any) -> int:
        """Run a model once on an input of this shape and count what it did, whole batch.

        `layer_breakdown` then has each layer's own work by its path. What has no formula is in
        `not_counted`, nothing is assumed about it. Forgets what was counted before.
        """
        recording = record_call(model, *example_inputs(model, input_shape))
        self.reset()
        self.add_operations(recording.operations, name=type(model).__name__)
        return self.operation_counts["total_flops"]

    def add_operations(
        self, operations: Iterable[OpRecord], *, name: str = "(model)", with_biases: bool = True
    ) -> None:
        """Count operations that were recorded; `name` stands for the model itself."""
        missing: Counter[str] = Counter()
        for record in operations:
            if record.cost is None:
                missing[record.kind] += 1
                continue
            self.other_flops += record.cost.other_flops
            if with_biases and record.kind in WITH_HIDDEN_BIASES:
                missing[f"biases inside {record.kind}"] += 1
            if record.macs:
                layer = "(outside of layers)" if record.path is None else record.path or name
                self._add(layer, record.macs, _bias_additions(record) if with_biases else 0)
        for kind, calls in missing.items():
            self.not_counted[kind] = self.not_counted.get(kind, 0) + calls

    def print_report(self, name: str = "Model") -> None:
        """Print the counts, and in which convention they are."""
        reports = profiling_reports()
        reports.show(reports.render_flops(self, name))

    # ------------------------------------------------------------ adding up

    def add_total(self, flops: int, breakdown: dict[str, int] | None = None) -> None:
        """Add a number that was counted elsewhere, in this counter's convention."""
        check_count("flops", flops, at_least=0)
        self.operation_counts["total_flops"] += flops
        for layer, count in (breakdown or {}).items():
            self.layer_breakdown[layer] = self.layer_breakdown.get(layer, 0) + count

    def _add(self, layer: str, products: int, biases: int) -> int:
        accumulations = products if self.convention == "flops" else 0
        total = products + accumulations + biases
        self.operation_counts["multiply"] += products
        self.operation_counts["add"] += accumulations + biases
        self.add_total(total, {layer: total})
        return total

    def _weigh(self, products: int, biases: int) -> int:
        return products * (2 if self.convention == "flops" else 1) + biases


def _spec(shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(shape, "float32", 0)


def _macs(kind: str, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> int:
    """Return the multiply-accumulates by the cost table, which also counts what runs."""
    call = Call(kind, tuple(_spec(shape) for shape in inputs), (_spec(output),), {})
    cost = cost_of(call)
    assert cost is not None, f"{kind} has no row in the cost table"
    return cost.macs


def _linear_macs(rows: int, inputs: int, outputs: int) -> int:
    return _macs("linear", ((rows, inputs), (inputs, outputs)), (rows, outputs))


def _attention(length: int, width: int, batch: int, bias: bool) -> tuple[int, int]:
    """Return the multiply-accumulates, and the additions of biases."""
    rows = batch * length
    tokens = (batch, length, width)  # how they are split into heads makes no difference
    products = 4 * _linear_macs(rows, width, width) + _macs("attention", (tokens,) * 3, tokens)
    return products, 4 * rows * width if bias else 0


def _bias_additions(record: OpRecord) -> int:
    position = ADDED_INPUT.get(record.kind)
    has_bias = (
        position is not None
        and len(record.inputs) > position
        and record.inputs[position] is not None
    )
    return record.outputs[0].size if has_bias else 0


def _output_length(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    reach = dilation * (kernel - 1) + 1
    if reach > length + 2 * padding:
        raise SettingError(
            f"a kernel that spans {reach} does not fit into {length} with padding {padding}"
        )
    return (length + 2 * padding - reach) // stride + 1


def _pair(name: str, size: Size, *, at_least: int) -> tuple[int, int]:
    both = (size, size) if not isinstance(size, (tuple, list)) else tuple(size)
    if len(both) != 2:
        raise SettingError(f"{name}={size}; give one number, or one for height and one for width")
    for each in both:
        check_count(name, each, at_least=at_least)
    return both[0], both[1]


def _one_of(**given: int | None) -> int:
    found = [value for value in given.values() if value is not None]
    if len(found) != 1:
        raise SettingError(f"give exactly one of {' and '.join(given)}")
    return found[0]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        check_count(name, size, at_least=1)


# ---------------------------------------------------------------- FLOPs per sample: what one
# example of a batch costs, whatever the batch


@dataclass(frozen=True)
class SampleFlops:
    """FLOPs of contractions, two per multiply-accumulate.

    `batch_size` is None where the first axis is no batch: a single vector, one image (C, H, W), one
    sequence (T, D) for an attention layer.
    """

    per_sample: int
    per_call: int
    batch_size: int | None


def flops_per_sample(model: Any, inputs: tuple[Any, ...], *, backward: bool = False) -> SampleFlops:
    """Count a call, and find out whether the first axis of its inputs is a batch.

    It is one if the model takes another length there and the cost is a fixed part plus the same
    for each sample. Where that cannot be, the whole call is one sample. The model is run on two or
    three batch sizes, and only counted, not timed.
    """
    whole = count_flops(model, *inputs, backward=backward)
    shape = shape_of(inputs[0]) if inputs else ()
    length = shape[0] if len(shape) > 1 else 1
    if length == 1:
        return SampleFlops(whole, whole, 1 if len(shape) > 1 else None)
    counts = {length: whole}
    # Never a batch of one: some layers refuse it in training mode.
    for other in (length // 2 if length >= 4 else 2 * length, 3 * length):
        try:
            resized = _resized(inputs, length, other)
            counts[other] = count_flops(model, *resized, backward=backward)
        except TinyTorchError:
            return SampleFlops(whole, whole, None)
        if whole * other == counts[other] * length:
            return SampleFlops(whole // length, whole, length)
    return _with_fixed_part(counts, whole, length)


def _with_fixed_part(counts: dict[int, int], whole: int, length: int) -> SampleFlops:
    """Decide whether costs are affine in the length of the first axis: a batch with fixed work."""
    (a, at_a), (b, at_b), (c, at_c) = sorted(counts.items())
    if (at_b - at_a) * (c - b) != (at_c - at_b) * (b - a):
        return SampleFlops(whole, whole, None)
    each = (at_b - at_a) // (b - a)
    return SampleFlops(at_a - a * each + each, whole, length)


def _resized(inputs: tuple[Any, ...], length: int, other: int) -> tuple[Any, ...]:
    """Repeat or cut the inputs along their first axis, all that have the same length there."""
    positions = [index % length for index in range(other)]
    return tuple(x[positions] if shape_of(x)[:1] == (length,) else x for x in inputs)

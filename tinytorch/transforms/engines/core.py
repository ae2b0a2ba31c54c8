"""ONNX files of TinyTorch models: what a call computes, from operations to nodes by one table.

A call is traced with other values and, where axes may be open, at another size: what differs
between two traces has to follow from the inputs, or the axis stays fixed, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tinytorch.core import operations
from tinytorch.core.dispatch import recording
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module, naming
from tinytorch.core.operations import ACTIVATION_KINDS, Operation
from tinytorch.core.tensor import Tensor
from tinytorch.errors import MissingPartError, ModelError, TinyTorchError, first_line
from tinytorch.models.adapter import adapter_for, leaves, rebuilt
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload, call_model, resize_inputs
from tinytorch.transforms.engines.files import Argument, open_axes

OPSET, IR_VERSION = 20, 10
"""Of ONNX 1.15: the oldest with GELU."""
GROWN = 2
"""The second size has so many rows more."""
AXIS_NAMES = ("batch", "sequence")


class CannotExportError(ModelError):
    """An operation that has no equal in ONNX, or that was computed outside of what is seen."""


@dataclass(frozen=True)
class Trace:
    """One call: the arrays that went in, and the tensors that came out with their graph."""

    inputs: tuple[Array, ...]
    outputs: tuple[Tensor, ...]


def export_core(workload: Workload) -> tuple[Any, tuple[Argument, ...], tuple[str, ...], str]:
    """Return the ONNX model of a call, its inputs and outputs, and why axes are not open."""
    try:
        import onnx
    except ImportError as error:
        raise MissingPartError(
            'an ONNX file needs onnx: pip install "tinytorch-perf[engines]"'
        ) from error
    model = adapter_for(workload.model).clone(workload.model)
    _check_mode(model)
    given = (workload.inputs, dict(workload.keywords))
    example, others = _traced(model, given), _traced(model, rebuilt(given, _other_values))
    held = tuple(
        Argument(name, str(array.dtype), array.shape)
        for name, array in zip(_input_names(workload), example.inputs, strict=True)
    )
    why_fixed = ""
    for axes in open_axes(held):
        opened = tuple(each.opened(axes) for each in held)
        try:
            traces = (example, others, _traced(model, _resized(given, axes)))
            return *_built(onnx, model, opened, traces), why_fixed
        except TinyTorchError as error:
            why_fixed = why_fixed or first_line(error, with_class=False)
    return *_built(onnx, model, held, (example, others)), why_fixed


def _check_mode(model: Any) -> None:
    modules = adapter_for(model).modules(model).values()
    if any(isinstance(each, Module) and each.training for each in modules):
        raise ModelError("the model is in training mode: call model.eval() first")


def _input_names(workload: Workload) -> Iterator[str]:
    single = len(workload.inputs) == 1
    for place, value in enumerate(workload.inputs):
        for _ in filter(_is_array, leaves(value)):
            yield "input" if single else f"input_{place}"
    for name, value in workload.keywords.items():
        for _ in filter(_is_array, leaves(value)):
            yield name


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _other_values(leaf: Any) -> Any:
    """Return an input of the same size with other numbers, which are tokens where it held some."""
    if not _is_array(leaf):
        return leaf
    given = leaf.data if isinstance(leaf, Tensor) else leaf
    array = np.flip(given)
    if array.dtype.kind == "f":
        array = array.dtype.type(0.1) - array
    elif np.array_equal(array, given):  # flipping changes nothing: change every second number
        array = np.array(array)
        every = array.reshape(-1)[::2]
        every[...] = ~every if array.dtype.kind == "b" else np.where(every > 0, every - 1, 1)
    return Tensor(array) if isinstance(leaf, Tensor) else array


def _resized(given: Any, axes: tuple[int, ...]) -> Any:
    """Return more rows and shorter sequences; a model may know so many positions alone."""
    for axis in axes:
        length = next(each.shape[axis] for each in leaves(given) if _is_array(each))
        shorter = length - 1 if axis and length > GROWN else length + GROWN
        given = resize_inputs(given, axis, shorter)
    return given


def _traced(model: Any, given: Any) -> Trace:
    """Call a model with everything in it linked into the graph."""
    for tensor in named_tensors(model).values():
        tensor.requires_grad = tensor.dtype.kind == "f"
    arrays: list[Array] = []

    def fresh(leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        array = np.array(leaf.data if isinstance(leaf, Tensor) else leaf)
        arrays.append(array)
        if not isinstance(leaf, Tensor):
            return array
        return Tensor(array, requires_grad=array.dtype.kind == "f")

    inputs, keywords = rebuilt(given, fresh)
    names = {id(module): path for path, module in adapter_for(model).modules(model).items()}
    with naming(names), recording(lambda call: None):  # operations know their layers only then
        made = call_model(model, *inputs, **keywords)
    outputs = tuple(each for each in leaves(made) if isinstance(each, Tensor))
    if not outputs:
        raise ModelError("its output holds no tensor")
    return Trace(tuple(arrays), outputs)


# ---------------------------------------------------------------- from operations to nodes


class Site:
    """One operation as it ran in each trace, and the graph that its node goes to."""

    def __init__(self, graph: Graph, ran: tuple[Operation, ...], arrays: list[Array]) -> None:
        self.graph = graph
        self.ran = ran
        self.arrays = arrays
        """The inputs in the first trace."""

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, which become nodes or constants once they are asked for."""
        by_place = zip(*(each.inputs for each in self.ran), strict=True)
        return [self.graph.value(tensors) for tensors in by_place]

    def same(self, name: str) -> Any:
        """Return a setting that must not depend on sizes or on values."""
        first, *others = (getattr(each, name) for each in self.ran)
        if not all(_equal(first, other) for other in others):
            raise self.refusal(f"its {name} depends on the size of the inputs")
        return first

    def refusal(self, reason: str) -> CannotExportError:
        operation = self.ran[0]
        where = f"{operation.path}: " if operation.path else ""
        return CannotExportError(f"{where}{type(operation).__name__} has no ONNX form: {reason}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.array_equal(one, other))
    return type(one) is type(other) and bool(np.all(one == other))


class Graph:
    """The nodes and constants of an ONNX graph while it is made."""

    def __init__(self, onnx: Any, held: Sequence[Argument], traces: Sequence[Trace]) -> None:
        self.onnx = onnx
        self.held = held
        self.traces = traces
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.used: set[str] = set()
        self._known: dict[int, str] = {}
        self._follows: dict[int, bool] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"{kind}_{len(self.nodes)}"
        node = self.onnx.helper.make_node(kind, list(inputs), [name], name=name, **attributes)
        self.nodes.append(node)
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Add numbers; return their name."""
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(np.asarray(value, dtype))
        self.constants[name] = self.onnx.numpy_helper.from_array(
            array.reshape(np.shape(value)), name
        )
        return name

    def value(self, tensors: Sequence[Tensor]) -> str:
        """Return the name of a tensor, of which there is one per trace."""
        first = tensors[0]
        for operations_to in self._unknown(tensors):
            self._name(operations_to)
        return self._known[id(first)]

    def _unknown(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return what has to be named before this tensor, and the tensor, in order."""
        found: list[Sequence[Tensor]] = []
        waiting: list[tuple[Sequence[Tensor], bool]] = [(tensors, False)]
        seen: set[int] = set()
        while waiting:
            each, is_ready = waiting.pop()
            if is_ready:
                found.append(each)
            elif id(each[0]) not in self._known and id(each[0]) not in seen:
                seen.add(id(each[0]))
                waiting.append((each, True))
                waiting += [(before, False) for before in self._before(each)]
        return found

    def _before(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        if not self.follows(tensors[0]) or tensors[0].creator is None:
            return []
        ran = [each.creator for each in tensors]
        if any(type(each) is not type(ran[0]) for each in ran):
            raise CannotExportError("what it computes depends on the size or values of its inputs")
        return list(zip(*(each.inputs for each in ran if each is not None), strict=True))

    def follows(self, tensor: Tensor) -> bool:
        """Return whether a tensor follows from the inputs, and is no constant."""
        waiting = [tensor]
        while waiting:
            each = waiting[-1]
            creator = each.creator
            before = () if creator is None else creator.inputs
            if id(each) in self._follows:
                waiting.pop()
            elif unknown := [x for x in before if id(x) not in self._follows]:
                waiting += unknown
            else:
                self._follows[id(each)] = (
                    self._input_of(each.data) is not None
                    if creator is None
                    else any(self._follows[id(x)] for x in before) or self._reads_input(creator)
                )
        return self._follows[id(tensor)]

    def _reads_input(self, creator: Operation) -> bool:
        if isinstance(creator, operations.Embedding):
            return self._input_of(creator.ids) is not None
        # A table of positions is cut to the length of the inputs, a token repeated for each row.
        asked: tuple[Any, ...] = ()
        if isinstance(creator, operations.GetItem):
            parts = creator.index if isinstance(creator.index, tuple) else (creator.index,)
            asked = tuple(each.stop for each in parts if isinstance(each, slice))
        elif isinstance(creator, operations.BroadcastTo):
            asked = creator.shape
        return any(size in self._open_sizes for size in asked)

    @cached_property
    def _open_sizes(self) -> set[int]:
        """The sizes of open axes in the first trace."""
        pairs = zip(self.held, self.traces[0].inputs, strict=True)
        return {
            size
            for argument, array in pairs
            for size, wanted in zip(array.shape, argument.shape, strict=True)
            if wanted is None
        }

    def _input_of(self, array: Array) -> int | None:
        """Return which input of the first trace an array is, or None."""
        for place, each in enumerate(self.traces[0].inputs):
            if array.shape == each.shape and np.shares_memory(array, each):
                return place
        return None

    def given(self, arrays: Array) -> str:
        """Return the name of the input that an array of the first trace is."""
        place = self._input_of(arrays)
        if place is None:
            return self.constant(np.asarray(arrays))
        name = self.held[place].name
        self.used.add(name)
        return name

    def _name(self, tensors: Sequence[Tensor]) -> None:
        first, creator = tensors[0], tensors[0].creator
        if creator is None and self._input_of(first.data) is not None:
            self._known[id(first)] = self.given(first.data)
        elif not self.follows(first):
            if not all(_equal(first.data, other.data) for other in tensors[1:]):
                raise CannotExportError(
                    "it computes numbers outside of its operations, from the size or the values "
                    "of its inputs"
                )
            self._known[id(first)] = self.constant(first.data)
        else:
            assert creator is not None
            ran = tuple(each.creator for each in tensors if each.creator is not None)
            site = Site(self, ran, [each.data for each in creator.inputs])
            rule = RULES.get(type(creator))
            if rule is None:
                raise site.refusal(f"known are {', '.join(sorted(x.__name__ for x in RULES))}")
            self._known[id(first)] = rule(site)

    def size(self, lengths: Sequence[int]) -> str | None:
        """Return the open size of an input (1,) that is so long in each trace; None if none is."""
        for place, argument in enumerate(self.held):
            for axis, size in enumerate(argument.shape):
                seen = [trace.inputs[place].shape[axis] for trace in self.traces]
                if size is None and seen == list(lengths):
                    self.used.add(argument.name)
                    return self.add("Shape", argument.name, start=axis, end=axis + 1)
        return None


def _built(
    onnx: Any, model: Any, held: tuple[Argument, ...], traces: tuple[Trace, ...]
) -> tuple[Any, tuple[Argument, ...], tuple[str, ...]]:
    graph = Graph(onnx, held, traces)
    made = [graph.value(each) for each in zip(*(x.outputs for x in traces), strict=True)]
    unseen = [each.name for each in held if each.name not in graph.used]
    if unseen:
        raise CannotExportError(
            f"how its output follows from {', '.join(unseen)} is not seen: a layer computes "
            "outside of the operations of tensors, as quantized and fused layers do; export the "
            "model before it is optimized"
        )
    names = ("output",) if len(made) == 1 else tuple(f"output_{at}" for at in range(len(made)))
    for name, source in zip(names, made, strict=True):
        graph.nodes.append(onnx.helper.make_node("Identity", [source], [name], name=name))
    outputs = [
        _described(onnx, name, str(each.data.dtype), _sizes([x.outputs[at].shape for x in traces]))
        for at, (name, each) in enumerate(zip(names, traces[0].outputs, strict=True))
    ]
    inputs = [_described(onnx, each.name, each.dtype, _named(each.shape)) for each in held]
    made_graph = onnx.helper.make_graph(
        graph.nodes, type(model).__name__, inputs, outputs, list(graph.constants.values())
    )
    found = onnx.helper.make_model(
        made_graph,
        producer_name="tinytorch",
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(found)
    return found, held, names


def _described(onnx: Any, name: str, dtype: str, shape: Sequence[Any]) -> Any:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, list(shape))


def _named(shape: Sequence[int | None]) -> list[int | str]:
    return [AXIS_NAMES[axis] if size is None else size for axis, size in enumerate(shape)]


def _sizes(shapes: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the sizes that are the same in all traces; None for the others."""
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]


# ---------------------------------------------------------------- one rule per operation


def _plain(kind: str) -> Callable[[Site], str]:
    return lambda site: site.graph.add(kind, *site.inputs)


def _along_axis(kind: str) -> Callable[[Site], str]:
    def rule(site: Site) -> str:
        rank = site.arrays[0].ndim
        return site.graph.add(kind, *site.inputs, axis=site.same("axis") % rank)

    return rule


def _reduction(kind: str) -> Callable[[Site], str]:
    def rule(site: Site) -> str:
        axis, rank = site.same("axis"), site.arrays[0].ndim
        axes = range(rank) if axis is None else np.atleast_1d(axis) % rank
        chosen = site.graph.constant([int(each) for each in axes], np.int64)
        return site.graph.add(kind, *site.inputs, chosen, keepdims=int(site.same("keepdims")))

    return rule


def _scalar_power(site: Site) -> str:
    exponent = site.graph.constant(site.same("exponent"), site.arrays[0].dtype)
    return site.graph.add("Pow", *site.inputs, exponent)


def _gelu(site: Site) -> str:
    return site.graph.add("Gelu", *site.inputs, approximate=site.same("approximate"))


def _where(site: Site) -> str:
    return site.graph.add("Where", site.graph.constant(site.same("condition")), *site.inputs)


def _linear(site: Site) -> str:
    x, weight, *bias = site.inputs
    found = site.graph.add("MatMul", x, weight)
    if bias:
        found = site.graph.add("Add", found, *bias)
    activation = site.same("activation")
    if activation is None:
        return found
    kind, settings = ACTIVATION_KINDS[activation]
    return site.graph.add(kind.capitalize(), found, **settings)


def _attention(site: Site) -> str:
    """softmax(query key^T scale + bias) value; a query that sees nothing gets zeros."""
    graph, (query, key, value) = site.graph, site.inputs
    bias, dtype = site.same("bias"), site.arrays[0].dtype
    rank = site.arrays[1].ndim
    swapped = graph.add("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scale = graph.constant(site.same("scale"), dtype)
    scores = graph.add("MatMul", graph.add("Mul", query, scale), swapped)
    if bias is not None:
        scores = graph.add("Add", scores, graph.constant(bias))
    if site.same("causal"):
        scores = graph.add("Add", scores, _causal(graph, query, key, rank, dtype))
    weights = graph.add("Softmax", scores, axis=-1)
    if bias is not None and bool((bias == -np.inf).any()):
        nothing = graph.add("IsNaN", weights)
        weights = graph.add("Where", nothing, graph.constant(0.0, dtype), weights)
    return graph.add("MatMul", weights, value)


def _causal(graph: Graph, query: str, key: str, rank: int, dtype: Any) -> str:
    """Return -inf above the diagonal (queries, keys); the last query sees every key."""
    queries, keys = (graph.add("Shape", x, start=rank - 2, end=rank - 1) for x in (query, key))
    lowest = graph.onnx.numpy_helper.from_array(np.full(1, -np.inf, dtype))
    full = graph.add("ConstantOfShape", graph.add("Concat", queries, keys, axis=0), value=lowest)
    first = graph.add("Add", graph.add("Sub", keys, queries), graph.constant([1], np.int64))
    offset = graph.add("Squeeze", first, graph.constant([0], np.int64))
    return graph.add("Trilu", full, offset, upper=1)


def _reshape(site: Site) -> str:
    """A size that differs is that of the input on the same axis, or whatever is left."""
    wanted = _sizes([each.shape for each in site.ran])  # type: ignore[attr-defined]
    source = [tuple(each.inputs[0].shape) for each in site.ran]
    sizes = []
    for axis, size in enumerate(wanted):
        asked = [each.shape[axis] for each in site.ran]  # type: ignore[attr-defined]
        is_kept = all(axis < len(x) and x[axis] == y for x, y in zip(source, asked, strict=True))
        sizes.append(size if size is not None else 0 if is_kept else -1)
    if sizes.count(-1) > 1:
        raise site.refusal("two sizes follow from those of the inputs")
    return site.graph.add("Reshape", *site.inputs, site.graph.constant(sizes, np.int64))


def _broadcast(site: Site) -> str:
    """A size of 1 keeps that of the input."""
    sizes = _sizes([each.shape for each in site.ran])  # type: ignore[attr-defined]
    parts = []
    for axis, size in enumerate(sizes):
        asked = [each.shape[axis] for each in site.ran]  # type: ignore[attr-defined]
        place = axis - len(sizes)
        sources = [each.inputs[0].shape for each in site.ran]
        is_kept = all(
            len(x) >= -place and x[place] == y for x, y in zip(sources, asked, strict=True)
        )
        known = 1 if size is None and is_kept else size
        open_size = site.graph.size(asked) if known is None else None
        if known is None and open_size is None:
            raise site.refusal("a size of its output follows from none of an input")
        parts.append(open_size or site.graph.constant([known], np.int64))
    return site.graph.add("Expand", *site.inputs, site.graph.add("Concat", *parts, axis=0))


def _transpose(site: Site) -> str:
    rank = site.arrays[0].ndim
    return site.graph.add("Transpose", *site.inputs, perm=[x % rank for x in site.same("axes")])


def _concatenate(site: Site) -> str:
    axis = site.same("axis") % site.arrays[0].ndim
    return site.graph.add("Concat", *site.inputs, axis=axis)


def _embedding(site: Site) -> str:
    ids = [each.ids for each in site.ran]  # type: ignore[attr-defined]
    if site.graph._input_of(ids[0]) is None and not all(_equal(ids[0], x) for x in ids[1:]):
        raise site.refusal("its ids are computed outside of the operations of tensors")
    return site.graph.add("Gather", *site.inputs, site.graph.given(ids[0]), axis=0)


def _layer_norm(site: Site) -> str:
    return site.graph.add("LayerNormalization", *site.inputs, axis=-1, epsilon=site.same("eps"))


def _convolution(site: Site) -> str:
    settings = site.same("settings")
    return site.graph.add(
        "Conv",
        *site.inputs,
        strides=list(settings["stride"]),
        pads=[*settings["padding"], *settings["padding"]],
        dilations=list(settings["dilation"]),
        group=settings["groups"],
    )


def _pool(kind: str, **attributes: int) -> Callable[[Site], str]:
    def rule(site: Site) -> str:
        settings = site.same("settings")
        return site.graph.add(
            kind,
            *site.inputs,
            kernel_shape=list(settings["kernel"]),
            strides=list(settings["stride"]),
            pads=[*settings["padding"], *settings["padding"]],
            **attributes,
        )

    return rule


def _get_item(site: Site) -> str:
    """Numbers, slices, new axes, and one array of whole numbers."""
    graph = site.graph
    indices = [_full_index(each.index, each.inputs[0].ndim) for each in site.ran]  # type: ignore[attr-defined]
    if sum(isinstance(each, np.ndarray) for each in indices[0]) > 1:
        raise site.refusal("it is given several arrays of indices")
    (found,), axis, added = site.inputs, 0, []
    for parts in zip(*indices, strict=True):
        part = parts[0]
        if part is None:
            added.append(axis)
            axis += 1
        elif isinstance(part, slice):
            found = _sliced(site, found, axis - len(added), parts)
            axis += 1
        elif isinstance(part, np.ndarray):
            if part.dtype.kind not in "iu" or not all(_equal(part, x) for x in parts[1:]):
                raise site.refusal("its indices are no constant whole numbers")
            chosen = graph.given(part.astype(np.int64, copy=False))
            found = graph.add("Gather", found, chosen, axis=axis - len(added))
            axis += part.ndim
        else:
            if any(other != part for other in parts):
                raise site.refusal("its index depends on the size of the inputs")
            chosen = graph.constant(int(part), np.int64)
            found = graph.add("Gather", found, chosen, axis=axis - len(added))
    if added:
        found = graph.add("Unsqueeze", found, graph.constant(added, np.int64))
    return found


def _full_index(index: Any, rank: int) -> list[Any]:
    """Return an index with its ellipsis written out; lists are arrays."""
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [np.asarray(each) if isinstance(each, list) else each for each in parts]
    taken = sum(each is not None and each is not Ellipsis for each in parts)
    rest = [slice(None)] * (rank - taken)
    for place, each in enumerate(parts):
        if each is Ellipsis:
            return [*parts[:place], *rest, *parts[place + 1 :]]
    return [*parts, *rest]


def _sliced(site: Site, found: str, axis: int, parts: Sequence[slice]) -> str:
    graph, first = site.graph, parts[0]
    if first == slice(None):
        return found
    if any((x.start, x.step) != (first.start, first.step) for x in parts):
        raise site.refusal("where it begins depends on the size of the inputs")
    step = first.step or 1
    ends = [x.stop for x in parts]
    largest = np.iinfo(np.int64)
    if len(set(ends)) > 1:
        end = graph.size(ends)
        if end is None:
            raise site.refusal("where it ends follows from no size of an input")
    else:
        default = largest.max if step > 0 else largest.min
        end = graph.constant([default if ends[0] is None else ends[0]], np.int64)
    start = first.start if first.start is not None else 0 if step > 0 else largest.max
    numbers = [graph.constant([each], np.int64) for each in (start, axis, step)]
    return graph.add("Slice", found, numbers[0], end, numbers[1], numbers[2])


RULES: dict[type[Operation], Callable[[Site], str]] = {
    operations.Add: _plain("Add"),
    operations.Subtract: _plain("Sub"),
    operations.Multiply: _plain("Mul"),
    operations.Divide: _plain("Div"),
    operations.Power: _plain("Pow"),
    operations.ScalarPower: _scalar_power,
    operations.Negative: _plain("Neg"),
    operations.Absolute: _plain("Abs"),
    operations.Exp: _plain("Exp"),
    operations.Log: _plain("Log"),
    operations.Sqrt: _plain("Sqrt"),
    operations.Where: _where,
    operations.ReLU: _plain("Relu"),
    operations.Sigmoid: _plain("Sigmoid"),
    operations.Tanh: _plain("Tanh"),
    operations.GELU: _gelu,
    operations.Softmax: _along_axis("Softmax"),
    operations.LogSoftmax: _along_axis("LogSoftmax"),
    operations.Matmul: _plain("MatMul"),
    operations.Linear: _linear,
    operations.Attention: _attention,
    operations.Sum: _reduction("ReduceSum"),
    operations.Mean: _reduction("ReduceMean"),
    operations.Max: _reduction("ReduceMax"),
    operations.Reshape: _reshape,
    operations.Transpose: _transpose,
    operations.BroadcastTo: _broadcast,
    operations.GetItem: _get_item,
    operations.Concatenate: _concatenate,
    operations.Embedding: _embedding,
    operations.LayerNorm: _layer_norm,
    operations.Conv2d: _convolution,
    operations.MaxPool2d: _pool("MaxPool"),
    operations.AvgPool2d: _pool("AveragePool", count_include_pad=1),
}
"""What each operation of tensors is in ONNX. Losses and the batch norm of training have no rule."""

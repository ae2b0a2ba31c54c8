"""Describing a language model to the compiled step, which computes the next token in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, is_
from threading import Lock
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from tinytorch.core.dispatch import active_backend, state
from tinytorch.core.kernels import Array
from tinytorch.core.kernels import step_tables as of
from tinytorch.core.kernels.packing import packed_length, packed_length_int4
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor

__all__ = ["BlockParts", "decode_token", "says"]

FLOAT32 = np.dtype(np.float32)
PADDING = 16
"""Zeros behind a vector, up to which packed weights are multiplied; and whole registers."""
WATCHED = (
    "forward", "forward_with_cache", "parts", "product", "_execution", "_hooks", "_pre_hooks",
)  # fmt: skip
"""Attributes of a module that change how it is called."""


@dataclass(frozen=True)
class BlockParts:
    """What a block computes: attention and an MLP, each behind a norm and with a residual.

    `products` are those of queries, keys, values, the output of attention, up, gate (or None) and
    down. A norm without a bias divides by the root mean square.
    """

    norms: tuple[Any, Any]
    products: tuple[Any, ...]
    activation: str | None
    heads: int
    kv_heads: int
    head_dim: int
    head_norms: tuple[Any, Any] = (None, None)
    rotary: Any = None
    others: tuple[Any, ...] = ()
    """Layers that only hold the others."""


class Unsuitable(Exception):
    """The compiled step cannot compute this model."""


# ---------------------------------------------------------------- the next token


def decode_token(model: Any, x: Array, cache: KVCache) -> Array | None:
    """Return the logits (1, 1, vocabulary) of an embedded token (1, 1, width) after a cache.

    None, before anything was changed, where the backend has no compiled step, or where that would
    not compute what the layers do: they are watched, or of kinds that it does not know.
    """
    run = active_backend().decode
    if run is None or state.recorders or x.dtype != FLOAT32 or cache.dtype != FLOAT32:
        return None
    if type(cache) is not KVCache:  # which may keep something else than what it is given
        return None
    if cache.window is not None or cache.padding is not None or cache.seq_pos >= cache.slots:
        return None
    known = _DESCRIPTIONS.get(model)
    if known is None or not known.still_holds():
        known = _DESCRIPTIONS[model] = describe(model)
    return known.step(run, x, cache)


class Description:
    """A model as tables for the compiled step, as long as nothing of it is exchanged."""

    def __init__(self, model: Any) -> None:
        blocks = [_parts_of(block) for block in model.blocks]
        if not blocks:
            raise Unsuitable
        first = blocks[0]
        if type(model.norm) is not type(first.norms[0]) or any(
            each.activation != first.activation or each.rotary is not first.rotary
            for each in blocks
        ):
            raise Unsuitable
        width = getattr(first.norms[0], "normalized_shape", 0)
        self._pins = _Pins(model, blocks)
        self._sizes = np.zeros(of.SCORES + 1, np.int64)
        self._sizes[: of.SLOTS] = (
            len(blocks), width, first.heads, first.kv_heads, first.head_dim,
        )  # fmt: skip
        self._norms = _Norms(model, blocks, width)
        self._products = _Products(model, blocks, width, self._sizes)
        self._activation = first.activation
        self._board = np.zeros((len(blocks) * of.PHASES + 1) * 24, np.int64)
        self._pace = Pace()
        self._lock = Lock()
        self._rotary = first.rotary

    def still_holds(self) -> bool:
        """Return whether the tables still describe the model."""
        return self._pins.still_hold()

    def step(self, run: Callable[..., Any], x: Array, cache: KVCache) -> Array | None:
        """Run the step; None if it did not, as where another thread uses the model's memory."""
        if x.size != self._sizes[of.WIDTH] or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._step(run, x, cache)
        finally:
            self._lock.release()

    def _step(self, run: Callable[..., Any], x: Array, cache: KVCache) -> Array | None:
        position, slots = cache.seq_pos, cache.slots
        products = self._products
        room = products.room_for(slots)
        at = self._sizes[of.STREAM]
        room[at : at + x.size] = x.ravel()
        self._board.fill(0)
        waves = (NO_WAVES, NO_WAVES)
        if self._rotary is not None:
            like = room[: self._rotary.head_dim][None]  # (time, head_dim)
            cosines, sines = self._rotary.tables(like, position, None)
            waves = cosines[0], sines[0]
        begin = perf_counter()
        is_parallel = self._pace.is_parallel()
        done = run(
            self._board, products.table, self._norms.table, self._norms.epsilons, self._sizes,
            self._activation, *cache.memory(), position, *waves, room, products.octets,
            products.kinds, work=products.work if is_parallel else 0,
        )  # fmt: skip
        if not done:
            return None
        self._pace.note(perf_counter() - begin, is_parallel=is_parallel)
        cache.note_written(1)
        logits: Array = products.logits().copy()
        return logits.reshape(1, 1, -1)


NO_WAVES = np.empty(0, np.float32)


class _Nothing(Description):
    """Of a model that the compiled step cannot compute, as long as nothing of it is exchanged."""

    def __init__(self, model: Any) -> None:
        self._model = ref(model)  # what holds it, in a WeakKeyDictionary, would keep it for ever
        self._holders = [vars(each) for each in model.modules() if each is not model]
        self._seen = self._look()

    def still_holds(self) -> bool:
        return self._look() == self._seen

    def _look(self) -> list[list[int]]:
        """Return what stands where, and what is in lists and among hooks."""
        values = [v for held in (vars(self._model()), *self._holders) for v in held.values()]
        inner = [list(map(id, each)) for each in values if type(each) in (list, dict)]
        return [[id(v) for v in values if not isinstance(v, (int, float, tuple))], *inner]

    def step(self, run: Callable[..., Any], x: Array, cache: KVCache) -> Array | None:
        return None


_DESCRIPTIONS: WeakKeyDictionary[Any, Description] = WeakKeyDictionary()


def describe(model: Any) -> Description:
    try:
        return Description(model)
    except Unsuitable:
        return _Nothing(model)


def _parts_of(block: Any) -> BlockParts:
    kind = block.__class__
    if not (says(kind, "parts", "forward") and says(kind, "parts", "forward_with_cache")):
        raise Unsuitable
    parts: BlockParts | None = block.parts()
    if parts is None:
        raise Unsuitable
    return parts


@lru_cache
def says(kind: Any, what: str, how: str) -> bool:
    """Return whether the class that defines `how` something is computed also says `what` it is."""
    home = next((each for each in kind.__mro__ if how in vars(each)), None)
    return home is not None and what in vars(home)


# ---------------------------------------------------------------- is it still the same model?


class _Pins:
    """What the tables were made from: attributes of modules, and arrays of tensors."""

    def __init__(self, model: Any, blocks: Sequence[BlockParts]) -> None:
        modules = [model.norm, model.head, *model.blocks]
        for parts in blocks:
            held = (*parts.norms, *parts.products, *parts.head_norms, *parts.others)
            modules += [each for each in held if each is not None]
        if any(vars(module).get(name) for module in modules for name in WATCHED):
            raise Unsuitable
        self._holders = [vars(each) for each in modules]
        self._lengths = list(map(len, self._holders))
        tensors: dict[int, Tensor] = {}
        self._model, self._own = ref(model), (model.norm, model.head, model.blocks)
        pinned: list[tuple[dict[str, Any], str, Any]] = []
        for holder in self._holders:
            for name, value in holder.items():
                if name != "training" and not isinstance(value, (int, tuple)):  # sizes
                    pinned.append((holder, name, value))
                if isinstance(value, Tensor):
                    tensors[id(value)] = value
        embedding = getattr(model.head, "embedding", None)
        if embedding is not None:
            tensors[id(embedding.weight)] = embedding.weight
            pinned.append((vars(embedding), "weight", embedding.weight))
        self._places = [holder for holder, _, _ in pinned]
        self._names = [name for _, name, _ in pinned]
        self._values = [value for _, _, value in pinned]
        self._tensors = list(tensors.values())
        self._arrays = [tensor.data for tensor in self._tensors]
        # what these hold may change, too: lists of layers, and hooks, of which there are none
        values = (model.blocks, *self._values)
        self._held = [(each, _items(each)) for each in values if isinstance(each, (list, dict))]

    def still_hold(self) -> bool:
        model: Any = self._model()
        return (
            list(map(len, self._holders)) == self._lengths
            and all(map(is_, (model.norm, model.head, model.blocks), self._own))
            and all(
                len(now) == len(then) and all(map(is_, _items(now), then))
                for now, then in self._held
            )
            and all(map(is_, map(dict.get, self._places, self._names), self._values))
            and all(map(is_, map(attrgetter("data"), self._tensors), self._arrays))
        )


def _items(held: list[Any] | dict[Any, Any]) -> list[Any]:
    return list(held.values()) if isinstance(held, dict) else list(held)


# ---------------------------------------------------------------- tables


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def _vector(array: Array, size: int) -> Array:
    """Return a vector of floats as the step reads it."""
    if array.dtype != FLOAT32 or array.shape != (size,) or not array.flags.carray:
        raise Unsuitable
    return array


class _Norms:
    def __init__(self, model: Any, blocks: Sequence[BlockParts], width: int) -> None:
        layers = [norm for parts in blocks for norm in (*parts.norms, *parts.head_norms)]
        layers.append(model.norm)
        self.table = np.zeros((len(layers), 2), np.int64)
        self.epsilons = np.zeros(len(layers), np.float64)
        self.arrays: list[Array] = []  # alive as long as their addresses are used
        for row, norm in enumerate(layers):
            if norm is not None:
                self._add(row, norm, blocks[0].head_dim if row % 4 > 1 else width)

    def _add(self, row: int, norm: Any, width: int) -> None:
        if not isinstance(norm, Module) or norm.normalized_shape != width:  # type: ignore[attr-defined]
            raise Unsuitable
        held = [norm.weight, getattr(norm, "bias", None)]  # type: ignore[attr-defined]
        arrays = [_vector(each.data, width) for each in held if each is not None]
        self.arrays += arrays
        self.table[row, : len(arrays)] = list(map(_address, arrays))
        self.epsilons[row] = norm.eps  # type: ignore[attr-defined]


class _Products:
    """The products of a model, and the memory (`room`) in which its vectors lie."""

    def __init__(self, model: Any, blocks: Sequence[BlockParts], width: int, sizes: Array) -> None:
        self.table = np.zeros((len(blocks) + 1, of.PRODUCT_SLOTS, of.FIELDS), np.int64)
        self.kinds: set[int] = set()
        self.work = 0
        self._arrays: list[Array] = []
        self._sizes = sizes
        for layer, parts in enumerate(blocks):
            for slot, product in enumerate(parts.products):
                if product is not None:
                    self._add(self.table[layer, slot], product)
            self._check(self.table[layer], parts, width)
        self._add(self.table[-1, 0], model.head)
        if self.table[-1, 0, of.INPUTS] != width:
            raise Unsuitable
        self._place()

    def _check(self, block: Array, parts: BlockParts, width: int) -> None:
        attended, kept = parts.heads * parts.head_dim, parts.kv_heads * parts.head_dim
        inner = int(self.table[0, of.UP, of.OUTPUTS])
        wanted = [
            (width, attended), (width, kept), (width, kept), (attended, width), (width, inner),
            (0, 0) if parts.products[of.GATE] is None else (width, inner), (inner, width),
        ]  # fmt: skip
        if block[:, of.INPUTS : of.OUTPUTS + 1].tolist() != list(map(list, wanted)):
            raise Unsuitable
        if (parts.heads, parts.kv_heads, parts.head_dim) != tuple(
            self._sizes[of.HEADS : of.HEAD_DIM + 1]
        ):
            raise Unsuitable

    def _add(self, row: Array, layer: Any) -> None:
        """Write the row of a product."""
        if not says(layer.__class__, "product", "forward"):
            raise Unsuitable
        kind, arrays, settings = layer.product()
        if kind not in READERS:
            raise Unsuitable
        described = READERS[kind](arrays, settings)
        row[of.KIND], row[of.INPUTS], row[of.OUTPUTS] = described.kind, *described.shape
        row[of.TASKS], row[of.GROUP] = described.tasks, described.group
        held = (described.values, described.scales, described.excess, described.bias)
        row[of.VALUES : of.BIAS + 1] = list(map(_address, held))
        self._arrays += [each for each in held if each is not None]
        self.kinds.add(described.kind)
        self.work += described.values.size

    def _place(self) -> None:
        """Assign each vector its place; those of all blocks share theirs."""
        sizes, block = self._sizes, self.table[0]
        width, inner = int(sizes[of.WIDTH]), int(block[of.UP, of.OUTPUTS])
        attended = int(sizes[of.HEADS] * sizes[of.HEAD_DIM])
        at = PADDING

        def take(size: int) -> int:
            nonlocal at
            place, at = at, at + -(-size // PADDING) * PADDING + PADDING
            return place

        sizes[of.STREAM], sizes[of.NORMALISED] = take(width), take(width)
        sizes[of.MIXED], sizes[of.HIDDEN] = take(attended), take(inner)
        outputs = [take(int(each)) for each in block[:, of.OUTPUTS]]
        outputs[of.UP] = int(sizes[of.HIDDEN])
        self.table[:-1, :, of.OUTPUT] = outputs
        self.table[-1, 0, of.OUTPUT] = take(int(self.table[-1, 0, of.OUTPUTS]))
        pitches = -(-self.table[:, :, of.OUTPUTS] // PADDING) * PADDING
        needed = self.table[:, :, of.TASKS] * pitches * (self.table[:, :, of.KIND] == of.ROWS)
        for slot in range(of.PRODUCT_SLOTS):
            self.table[:, slot, of.PARTIAL] = take(int(needed[:, slot].max()))
        sizes[of.SCORES] = self._fixed = at
        self._room = np.zeros(0, np.float32)
        self.octets = np.zeros(max(width, attended, inner) + 4 * PADDING, np.uint8)

    def room_for(self, slots: int) -> Array:
        """Return the memory, with scores of so many positions."""
        size = self._fixed + int(self._sizes[of.HEADS]) * slots + PADDING
        if len(self._room) < size:
            self._room = np.zeros(size, np.float32)
        self._sizes[of.SLOTS] = slots
        return self._room

    def logits(self) -> Array:
        head = self.table[-1, 0]
        return self._room[head[of.OUTPUT] : head[of.OUTPUT] + head[of.OUTPUTS]]


# ---------------------------------------------------------------- products by the kernel that
# computes them


@dataclass(frozen=True, eq=False)
class _Product:
    kind: int
    shape: tuple[int, int]
    tasks: int
    values: Array
    bias: Array | None = None
    scales: Array | None = None
    excess: Array | None = None
    group: int = 0


MOST_TASKS = 32
PARTS = 4
"""Tasks of a product: enough that threads which are held up for a while can be helped. Those by
rows are few, since their sums are added up in the end."""
FEW_COLUMNS = 16


def _tasks(columns: int) -> int:
    return max(1, min(MOST_TASKS, columns // FEW_COLUMNS))


def _bias(bias: Array | None, outputs: int) -> Array | None:
    return None if bias is None else _vector(bias, outputs)


def _floats(arrays: Sequence[Any], settings: dict[str, Any]) -> _Product:
    weight, bias = arrays
    if weight.dtype != FLOAT32 or settings or not weight.flags.aligned:
        raise Unsuitable
    inputs, outputs = weight.shape
    bias = _bias(bias, outputs)
    if weight.flags.c_contiguous:
        tasks = max(1, min(PARTS, inputs // PADDING))
        return _Product(of.ROWS, (inputs, outputs), tasks, weight, bias)
    if weight.T.flags.c_contiguous:
        return _Product(of.COLUMNS, (inputs, outputs), _tasks(outputs), weight, bias)
    raise Unsuitable


def _int8(arrays: Sequence[Any], settings: dict[str, Any], *, is_dynamic: bool) -> _Product:
    values, scales, sums, bias = arrays
    outputs = len(scales)
    inputs = (values.size - packed_length(4, outputs)) // outputs + 4  # in whole lines
    if settings or values.shape != (packed_length(inputs, outputs),):
        raise Unsuitable
    if values.dtype != np.int8 or not values.flags.carray:
        raise Unsuitable
    if is_dynamic and (sums.dtype != np.int32 or sums.shape != (outputs,)):
        raise Unsuitable
    excess = (128 * sums).astype(np.int32) if is_dynamic else None
    return _Product(
        of.INT8_DYNAMIC if is_dynamic else of.INT8_WEIGHT_ONLY, (inputs, outputs),
        _tasks(outputs // 4), values, _bias(bias, outputs), _vector(scales, outputs), excess,
    )  # fmt: skip


def _int4(arrays: Sequence[Any], settings: dict[str, Any]) -> _Product:
    values, scales, bias = arrays
    groups, outputs = scales.shape
    group = settings["group_size"]
    if len(settings) > 1 or values.shape != (packed_length_int4(groups * group, outputs),):
        raise Unsuitable
    if values.dtype != np.int8 or not values.flags.carray:
        raise Unsuitable
    if scales.dtype != FLOAT32 or not scales.flags.carray:
        raise Unsuitable
    return _Product(
        of.INT4, (groups * group, outputs), _tasks(outputs // 4), values, _bias(bias, outputs),
        scales, None, group,
    )  # fmt: skip


READERS: dict[str, Callable[[Sequence[Any], dict[str, Any]], _Product]] = {
    "linear": _floats,
    "int8_linear_weight_only": lambda arrays, settings: _int8(arrays, settings, is_dynamic=False),
    "int8_linear_dynamic": lambda arrays, settings: _int8(arrays, settings, is_dynamic=True),
    "int4_linear_weight_only": _int4,
}


# ---------------------------------------------------------------- one thread or several


class Pace:
    """Chooses between one thread and several, step by step, by the time that steps took.

    Several are faster unless something else uses the cores: then a step waits until a thread that
    holds a task runs again. After a step that took much longer than usual, one thread is tried, and
    kept for a while if it is faster.
    """

    SUSPICIOUS = 1.5
    """Times the usual duration of a step."""
    FOR_A_WHILE = 16
    """Steps until several threads are tried again."""

    def __init__(self) -> None:
        self._usual: float | None = None
        self._alone_for = 0
        self._slow = 0.0

    def is_parallel(self) -> bool:
        return self._alone_for == 0

    def note(self, seconds: float, *, is_parallel: bool) -> None:
        """Take in how long a step took."""
        if not is_parallel:
            self._alone_for -= 1
            if seconds > self._slow:  # no better: that is how long a step takes now
                self._alone_for, self._usual = 0, self._slow
            return
        if self._usual is None or seconds < self._usual:
            self._usual = seconds
            return
        self._usual += 0.02 * (seconds - self._usual)
        if seconds > self.SUSPICIOUS * self._usual:
            self._slow = seconds
            self._alone_for = self.FOR_A_WHILE

"""Records the steps of one rank: what its main thread does, and every collective it launches.

Collectives are seen where all of them pass, at PyTorch's dispatcher: those of DDP's reducer, which
is C++, those of FSDP, and plain calls of `torch.distributed`. Moments are nanoseconds of one clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from tinytorch.models.adapter import wrapping_layers
from tinytorch.scale.rank_file import (
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    Call,
    Site,
    Span,
    StepRecord,
    Wait,
)

COLLECTIVES = (
    *("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "barrier"),
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    *("gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_"),
)
"""Operators of c10d that move data between ranks."""
TO_ONE = {"send": 1, "recv_": -1}
"""Operators between two ranks, and which way the data goes."""
KEYS = ("AutogradCPU", "AutogradCUDA")
MOST_LAYERS = 40
ALL_UNDERWAY = -1
Work = dist.Work


@dataclass(slots=True)
class _Underway:
    """A call that was launched in a step; `work` is held until it is known to be done."""

    site: int
    number: int
    launched: int
    step: int
    place: int
    work: Any
    done: int = -1
    task: int = -1
    is_waited: bool = False

    def is_done(self, _: Any) -> None:
        if self.done < 0:
            self.done = perf_counter_ns()
        self.work = None


@dataclass(slots=True)
class _Step:
    number: int
    begin: int
    spans: list[tuple[str, int, int]]
    calls: list[_Underway]
    waits: list[tuple[int, int, _Underway | None]]
    layers: list[int]
    end: int = 0


class Recorder:
    """Watches this process; what it sees goes to the step that runs."""

    def __init__(self) -> None:
        self.sites: dict[Site, int] = {}
        self.layers: list[str] = []
        self._own_ns = 0
        self.groups: dict[str, Any] = {}
        self.on_boundary: Callable[[], None] | None = None
        self.is_marked = False
        """Whether the program marks its steps itself."""
        self.step: _Step = _Step(-1, perf_counter_ns(), [], [], [], [])
        self._wants_layers = True
        self._depth = 0
        self._main = get_ident()
        self._numbers: dict[str, int] = {}
        self._underway: dict[int, _Underway] = {}
        self._optimizer: int | None = None
        self._task, self._finalize = -1, 0
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._patches = ExitStack()
        self._hooks: list[Any] = []
        self._layer_ns: list[int] = []

    # ------------------------------------------------------------ steps

    def begin_step(self, number: int) -> None:
        """Begin a step now."""
        self._layer_ns[:] = [0] * len(self._layer_ns)
        self.step = _Step(number, perf_counter_ns(), [], [], [], [])

    def end_step(self) -> _Step:
        """Return the step that ends now; some of its calls may still be underway."""
        step = self.step
        step.end = perf_counter_ns()
        step.layers = list(self._layer_ns)
        return step

    def record_of(self, step: _Step) -> StepRecord:
        """Return a step that has ended as it is written."""

        def since(moment: int) -> int:
            return (moment - step.begin + 500) // 1000

        calls = tuple(
            Call(
                each.site,
                each.number,
                since(each.launched),
                -1 if each.done < 0 else since(each.done),
            )
            for each in step.calls
        )
        waits = tuple(
            Wait(since(begin), since(end), *_place(call, step.number))
            for begin, end, call in step.waits
        )
        spans = tuple(Span(phase, since(begin), since(end)) for phase, begin, end in step.spans)
        layers = tuple((each + 500) // 1000 for each in step.layers)
        begin = step.begin // 1000
        return StepRecord(step.number, begin, since(step.end), spans, calls, waits, layers)

    # ------------------------------------------------------------ installing

    def watch_steps(self) -> None:
        """Notice the ends of optimizer steps from now on."""
        self._hooks = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]

    def install(self) -> None:
        """Watch everything from now on."""
        self._intercept_collectives()
        work_wait = Work.wait
        self._replace(Work, "wait", self._waiting(work_wait))
        autograd = sys.modules["torch.autograd"]
        self._replace(autograd, "backward", self._backward(autograd.backward))
        self._replace(torch.nn.Module, "__call__", self._forward(torch.nn.Module.__call__))
        loader = dataloader._BaseDataLoaderIter
        self._replace(loader, "__next__", self.phase(INPUT, loader.__next__))

    def remove(self) -> None:
        """Put everything back but the ends of steps."""
        self._patches.close()
        self._underway.clear()
        self._wants_layers, self._layer_ns = True, []

    def remove_all(self) -> None:
        self.remove()
        for each in self._hooks:
            each.remove()
        self._hooks = []

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, new)
        self._patches.callback(setattr, owner, name, before)

    # ------------------------------------------------------------ phases

    def phase(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is a phase of the step, unless another one calls it."""

        @wraps(function)
        def timed(*args: Any, **settings: Any) -> Any:
            if self._depth or get_ident() != self._main:
                return function(*args, **settings)
            self._depth = 1
            begin = perf_counter_ns()
            try:
                return function(*args, **settings)
            finally:
                self._depth = 0
                self.step.spans.append((name, begin, perf_counter_ns()))

        return timed

    def _forward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.phase(FORWARD, call)

        def forward(module: Any, *args: Any, **settings: Any) -> Any:
            if self._depth:
                return call(module, *args, **settings)
            if self._wants_layers and self.step.number >= 0:
                self._watch_layers(module)
            return timed(module, *args, **settings)

        return forward

    def _watch_layers(self, module: torch.nn.Module) -> None:
        """Time the layers of the first model that is called inside of a step."""
        chosen = choose_layers(module)
        if not chosen:
            return
        self._wants_layers = False
        self.layers = list(chosen)
        self._layer_ns = [0] * len(chosen)
        places = {path: place for place, path in enumerate(chosen)}

        def wrapper(path: str, method: Callable[..., Any]) -> Callable[..., Any]:
            place, sums = places[path], self._layer_ns

            def timed(*args: Any, **settings: Any) -> Any:
                begin = perf_counter_ns()
                try:
                    return method(*args, **settings)
                finally:
                    sums[place] += perf_counter_ns() - begin

            return timed

        self._patches.enter_context(wrapping_layers(chosen, ("forward",), wrapper))

    def _backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.phase(BACKWARD, backward)

        @wraps(backward)
        def watched(*args: Any, **settings: Any) -> Any:
            is_outer = not self._depth
            try:
                return timed(*args, **settings)
            finally:
                if is_outer and self._task >= 0:
                    self._end_backward(perf_counter_ns())

        return watched

    def _end_backward(self, end: int) -> None:
        """Note what DDP waited for at the end of the backward pass, inside of C++."""
        begin, task = self._finalize, self._task
        self._finalize, self._task = 0, -1
        calls = [each for each in self.step.calls if each.task == task and not each.is_waited]
        for call in calls:
            # What tells that it is done comes from another thread, a little late.
            work = call.work
            if call.done > end or (call.done < 0 and work is not None and work.is_completed()):
                call.done = end
        if begin and calls:
            self.step.waits.append((begin, end, None))

    def _optimizer_begins(self, optimizer: Any, args: Any, settings: Any) -> None:
        if not self._depth:
            self._depth = id(optimizer)
            self._optimizer_begin = perf_counter_ns()

    def _optimizer_ends(self, optimizer: Any, args: Any, settings: Any) -> None:
        if self._depth != id(optimizer):
            return
        self._depth = 0
        self.step.spans.append((OPTIMIZER, self._optimizer_begin, perf_counter_ns()))
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer) and not self.is_marked and self.on_boundary:
            self.on_boundary()

    # ------------------------------------------------------------ collectives

    def _intercept_collectives(self) -> None:
        library: Any = Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        self._patches.callback(library._destroy)
        present = set(dir(torch.ops.c10d)) | {
            name.partition("::")[2]
            for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
            if name.startswith("c10d::")
        }
        for name in COLLECTIVES:
            if name in present:
                for key in KEYS:
                    library.impl(name, self._kernel(name), key, with_keyset=True)

    def _kernel(self, name: str) -> Callable[..., Any]:
        operator = getattr(torch.ops.c10d, name).default
        names = [each.name for each in operator._schema.arguments]
        group_at, peer_at = (
            names.index("process_group"),
            next(
                (names.index(each) for each in ("dst", "src") if each in names and name in TO_ONE),
                None,
            ),
        )

        def kernel(keyset: Any, *args: Any, **settings: Any) -> Any:
            launched = perf_counter_ns()
            with torch._C._AutoDispatchBelowAutograd():
                found = operator(*args, **settings)
            entered = perf_counter_ns()
            peer = None if peer_at is None else args[peer_at]
            work = found[-1] if isinstance(found, tuple) else found
            self._launch(name, args, args[group_at], peer, work, launched)
            self._own_ns += perf_counter_ns() - entered
            return found

        return kernel

    def _launch(
        self,
        name: str,
        args: tuple[Any, ...],
        boxed: Any,
        peer: int | None,
        work: Any,
        launched: int,
    ) -> None:
        group = dist.ProcessGroup.unbox(boxed)
        group_name, ranks = self._group(group, name, peer)
        number = self._numbers.get(group_name, 0)
        self._numbers[group_name] = number + 1
        if self.step.number < 0:
            return
        nbytes, dtype = _moved(args)
        site = Site(name.strip("_"), group_name, ranks, nbytes, dtype)
        place = self.sites.setdefault(site, len(self.sites))
        held = Work.unbox(work)
        task = torch._C._current_graph_task_id()
        step = self.step
        call = _Underway(place, number, launched, step.number, len(step.calls), held, task=task)
        step.calls.append(call)
        self._underway[id(held)] = call
        if name not in TO_ONE:
            with suppress(RuntimeError):  # Some works of gloo have no future; a wait ends them.
                held.get_future().add_done_callback(call.is_done)
        if task >= 0 and task != self._task:
            self._task, self._finalize = task, 0
            # DDP has asked for its own callback later, so this one is called just before it waits.
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_computed)

    def _backward_computed(self) -> None:
        self._finalize = perf_counter_ns()

    def _group(self, group: Any, name: str, peer: int | None) -> tuple[str, tuple[int, ...]]:
        key = group.group_name
        if key not in self._ranks:
            self._ranks[key] = tuple(dist.get_process_group_ranks(group))
            self.groups[key] = group
        ranks = self._ranks[key]
        if peer is None:
            return key, ranks
        pair = (ranks[group.rank()], ranks[peer])[:: TO_ONE[name]]
        return f"{key}:{pair[0]}>{pair[1]}", pair

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(wait)
        def timed(work: Any, *args: Any, **settings: Any) -> Any:
            call = self._underway.pop(id(work), None)
            if call is None or get_ident() != self._main:
                return wait(work, *args, **settings)
            call.is_waited = True
            begin = perf_counter_ns()
            try:
                return wait(work, *args, **settings)
            finally:
                end = perf_counter_ns()
                if call.done < 0 or call.done > end:
                    call.done = end
                call.work = None
                self.step.waits.append((begin, end, call))

        return timed

    def take_own_ns(self) -> int:
        """Return what watching collectives took since the last call of this."""
        taken, self._own_ns = self._own_ns, 0
        return taken

    def forget(self, step: _Step) -> None:
        """Let go of the calls of a step that nobody waits for any more, and of older ones."""
        kept = {key: each for key, each in self._underway.items() if each.step > step.number}
        self._underway = kept
        for call in step.calls:
            call.work = None


def _place(call: _Underway | None, step: int) -> tuple[int, int]:
    return (ALL_UNDERWAY, 0) if call is None else (call.place, step - call.step)


def _moved(args: tuple[Any, ...]) -> tuple[int, str]:
    """Return the bytes of the larger of what goes in and what comes out, and its dtype."""
    most, dtype = 0, ""
    for each in args:
        tensors = _tensors(each)
        size = sum(tensor.nbytes for tensor in tensors)
        if size > most:
            most, dtype = size, str(tensors[0].dtype).removeprefix("torch.")
    return most, dtype


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def choose_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the deepest level of layers of which there are not more than `MOST_LAYERS`."""
    level: dict[str, torch.nn.Module] = {"": model}
    while True:
        deeper: dict[str, torch.nn.Module] = {}
        for path, layer in level.items():
            children = dict(layer.named_children())
            below = {f"{path}.{name}".strip("."): child for name, child in children.items()}
            deeper.update(below or {path: layer})
        if len(deeper) > MOST_LAYERS or deeper.keys() == level.keys():
            break
        level = deeper
    has_weights = next(model.parameters(), None) is not None
    return level if has_weights else {}

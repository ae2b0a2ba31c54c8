"""Pinned buffers, models that fetch their inputs, batches in time. Imported after torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.comparison.sequential import estimate_ratio
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.timing import DeviceClock, gc_paused
from tinytorch.models.adapter import rebuilt
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_tensors import WrappedModel, why_no_module
from tinytorch.models.workload import Workload, call_model
from tinytorch.transforms.pinned_transfers import NAME, PinnedTransfers
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.support.torch import ROUNDING, first_line, run_once, why_unlike

__all__ = ["FetchingModel", "PinnedBuffers", "apply_torch", "plan_torch", "prefetched"]

BUFFERS_EACH = 2
"""While the device fetches one buffer, the next call fills the other."""
MOST_SHAPES = 16
"""Buffers of so many shapes are kept; those that were not used for longest go."""
CALLS_CHECKED = 2 * BUFFERS_EACH + 1
ROUNDS, BUDGET_S = 40, 2.0
FEWEST_ROUNDS = 9
CALLS_EACH = 4
"""Calls in a row, since what is gained is that one call need not wait for the last."""
FLOOR, ERROR = 0.02, 0.05
SAME_BYTES = "the same parameters are held"


class PinnedBuffers:
    """Pinned memory by the place and shape of a tensor, filled only when nobody reads it any more.

    Copies of a model begin without buffers: events and pinned memory belong to one process.
    """

    def __init__(self) -> None:
        self._rings: OrderedDict[Any, list[tuple[torch.Tensor, torch.cuda.Event]]] = OrderedDict()
        self._lock = Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> PinnedBuffers:
        return PinnedBuffers()

    def __reduce__(self) -> tuple[type[PinnedBuffers], tuple[()]]:
        return PinnedBuffers, ()

    @property
    def nbytes(self) -> int:
        """The pinned memory that is held."""
        return sum(each.nbytes for ring in self._rings.values() for each, _ in ring)

    def fetched(self, tensor: torch.Tensor, place: int, device: torch.device) -> torch.Tensor:
        """Give a tensor of the processor on a device, on its way on the current stream."""
        if not _can_be_staged(tensor):
            return tensor.to(device)
        with self._lock:
            buffer, event = self._next(tensor, place, device)
            event.synchronize()
            buffer.copy_(tensor)
            moved = buffer.to(device, non_blocking=True)
            event.record(torch.cuda.current_stream(device))
        return moved

    def _next(
        self, tensor: torch.Tensor, place: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        key = (place, tensor.shape, tensor.stride(), tensor.dtype, device)
        ring = self._rings.setdefault(key, [])
        self._rings.move_to_end(key)
        if len(ring) < BUFFERS_EACH:
            ring.append((_pinned_like(tensor), _event()))
            while len(self._rings) > MOST_SHAPES:
                self._rings.popitem(last=False)
            return ring[-1]
        ring.append(ring.pop(0))
        return ring[-1]


def _pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Give an empty buffer that can be filled in any mode: one made for inference could not."""
    with torch.inference_mode(False):
        return torch.empty_like(tensor, pin_memory=True, requires_grad=False)


def _event() -> torch.cuda.Event:
    make: Any = torch.cuda.Event
    event: torch.cuda.Event = make()
    return event


def _can_be_staged(tensor: torch.Tensor) -> bool:
    """Tell plain numbers from what must be moved by itself, and what may change under our hands.

    Somebody else's pinned memory may be filled again as soon as we return: that transfer waits. A
    tensor with a graph keeps it only in a transfer of its own.
    """
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    has_graph = tensor.requires_grad and torch.is_grad_enabled()
    return is_plain and not (has_graph or tensor.is_quantized or tensor.is_pinned())


class FetchingModel(WrappedModel):
    """A model on a CUDA device that is called with tensors of the processor."""

    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__(model)
        self.home = torch.device(device)
        self.buffers_in_use = PinnedBuffers()

    @property
    def fetches_inputs_to(self) -> torch.device:
        """The device to which it moves inputs of the processor itself."""
        return self.home

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Let the device fetch the inputs, and call the model with them."""
        places = iter(range(len(tensors_in((inputs, keywords))) + 1))

        def fetch(leaf: Any) -> Any:
            if not _is_elsewhere(leaf):
                return leaf
            return self.buffers_in_use.fetched(leaf, next(places), self.home)

        with torch.cuda.device(self.home):
            moved, named = rebuilt((inputs, keywords), fetch)
            return self.model(*moved, **named)

    def extra_repr(self) -> str:
        return f"home={self.home}"


def _is_elsewhere(leaf: Any) -> bool:
    """Tell tensors to move; single numbers may stay, and often have to, as lengths do."""
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.dim() > 0


# ---------------------------------------------------------------- planning


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: PinnedTransfers) -> Any:
    """Give the copy of the model that fetches its inputs itself."""
    return FetchingModel(model, plan.steps[0].settings["device"])


def plan_torch(workload: Workload, settings: PinnedTransfers) -> Plan:
    """Check the outputs of a fetching copy, then race it against plain transfers."""
    reason, device = _why_not(workload)
    if reason:
        return _nothing(reason)
    adapter = TorchAdapter()
    try:
        with adapter.preserving(workload.model):
            model = adapter.clone(workload.model)
            fetching = FetchingModel(model, device)
            reason = _why_wrong(adapter, workload, model, fetching)
            if reason:
                return _nothing(reason)
            ratio, rounds = _race(adapter, workload, model, fetching)
    except Exception as error:  # a device or the model may raise anything
        return _nothing(first_line(error))
    finally:
        torch.cuda.empty_cache()
    held = f"holds {fetching.buffers_in_use.nbytes:,} bytes of pinned memory"
    found = f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f}) the time of .to(device)"
    if not ratio.high < 1 - FLOOR:
        return _nothing(f"inconclusive or not faster: {found}", (held,))
    step = Step("", "fetches its inputs through pinned buffers", found, {"device": device})
    basis = f"measured in turns against .to(device), {rounds} rounds"
    return Plan(
        NAME,
        {},
        (step,),
        speedup=Gain(**vars(ratio.inverse), basis=basis),
        not_predicted={"shrinkage": SAME_BYTES},
        notes=(held,),
    )


def _why_not(workload: Workload) -> tuple[str, str]:
    """Say why nothing is to be done, or on which device the model is."""
    reason = why_no_module(workload.model)
    if reason:
        return reason, ""
    try:
        device = TorchAdapter().device(workload.model, ())
    except TinyTorchError as error:
        return str(error), ""
    if not device.startswith("cuda"):
        return f"it runs on {device}: nothing is transferred", device
    if not any(_is_elsewhere(each) for each in tensors_in(workload.arguments)):
        words = "in a loop over batches, prefetching(loader, device) moves them in time"
        return f"its inputs are on {device} already; {words}", device
    return "", device


def _why_wrong(
    adapter: TorchAdapter, workload: Workload, model: nn.Module, fetching: FetchingModel
) -> str:
    """Compare outputs over several calls in a row, so that every buffer is used twice."""
    there = replace(
        workload,
        inputs=_moved(workload.inputs, fetching.home),
        keywords=_moved(dict(workload.keywords), fetching.home),
    )
    for _ in range(CALLS_CHECKED):
        expected = run_once(adapter, there, adapter.clone(model))
        found = run_once(adapter, workload, fetching)
        if reason := why_unlike(compare_outputs(expected, found), ROUNDING):
            return reason
    return ""


def _race(
    adapter: TorchAdapter, workload: Workload, model: nn.Module, fetching: FetchingModel
) -> tuple[Estimate, int]:
    """Give the time of fetching calls over that of calls with plain transfers."""

    def plainly() -> None:
        inputs, keywords = _moved((workload.inputs, dict(workload.keywords)), fetching.home)
        call_model(model, *inputs, **keywords)

    def by_fetching() -> None:
        call_model(fetching, *workload.inputs, **workload.keywords)

    clock, rng = DeviceClock(), np.random.default_rng(0)
    calls: list[Callable[[], None]] = [plainly, by_fetching]
    times: list[list[float]] = [[], []]
    end = perf_counter() + BUDGET_S
    with adapter.without_gradients(), gc_paused():
        for call in calls:
            call()
        while len(times[0]) < FEWEST_ROUNDS or (len(times[0]) < ROUNDS and perf_counter() < end):
            for index in rng.permutation(2):
                times[index].append(clock.time(calls[index], CALLS_EACH))
    ratios = np.log(np.array(times[1]) / np.array(times[0])).tolist()
    return estimate_ratio(ratios, ERROR), len(ratios)


def _moved(value: Any, device: torch.device) -> Any:
    return rebuilt(value, lambda leaf: leaf.to(device) if _is_elsewhere(leaf) else leaf)


def _nothing(reason: str, notes: tuple[str, ...] = ()) -> Plan:
    return Plan(NAME, {}, (), (Skipped("", reason),), notes=notes)


# ---------------------------------------------------------------- batches


def prefetched(loader: Iterable[Any], device: Any) -> Iterator[Any]:
    """Yield batches on a device, one ahead."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f"device {device!r}; give one such as 'cuda'") from error
    if place.type != "cuda":
        return (_moved_anywhere(batch, place) for batch in loader)
    if place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    return _ahead(loader, place)


def _moved_anywhere(batch: Any, place: torch.device) -> Any:
    return rebuilt(batch, lambda each: each.to(place) if isinstance(each, torch.Tensor) else each)


def _ahead(loader: Iterable[Any], place: torch.device) -> Iterator[Any]:
    make_stream: Any = torch.cuda.Stream
    stream = make_stream(place)
    buffers = PinnedBuffers()

    def sent(batch: Any) -> tuple[Any, torch.cuda.Event]:
        places = iter(range(len(tensors_in(batch)) + 1))

        def send(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
                return leaf
            if leaf.is_pinned():
                return leaf.to(place, non_blocking=True)
            return buffers.fetched(leaf, next(places), place)

        with torch.cuda.device(place), torch.cuda.stream(stream):
            moved = rebuilt(batch, send)
            done = _event()
            done.record(stream)
        return moved, done

    following: tuple[Any, torch.cuda.Event] | None = None
    for batch in loader:
        current, following = following, sent(batch)
        if current is not None:
            yield _handed_over(*current, place)
        # The loader may fill its own pinned buffers again when it is asked for the next batch.
        following[1].synchronize()
    if following is not None:
        yield _handed_over(*following, place)


def _handed_over(batch: Any, done: torch.cuda.Event, place: torch.device) -> Any:
    """Let the current stream wait for a batch, and keep its memory until that has used it."""
    current = torch.cuda.current_stream(place)
    current.wait_event(done)
    for tensor in tensors_in(batch):
        if tensor.device == place:
            tensor.record_stream(current)
    return batch

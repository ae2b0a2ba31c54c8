"""Capturing work on a CUDA device as a graph that is started as one. Imported after torch."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

import torch

from tinytorch.errors import ModelError, SettingError, first_line
from tinytorch.measure.timing import gc_paused
from tinytorch.models.adapter import leaves
from tinytorch.models.pytorch_compile import users_place, why_it_failed

Step = Callable[[], Any]

SYNCHRONISES = (
    "it waits for the device (.item(), .cpu(), printing or branching on a tensor, a mask as an "
    "index, a tensor made from Python numbers), which a graph cannot"
)
WAITS = "called a synchronizing cuda operation"
CAUSES = (
    (WAITS, SYNCHRONISES),
    ("operation not permitted when stream is capturing", SYNCHRONISES),
    ("streamcaptureunsupported", SYNCHRONISES),
    ("unless the cpu tensor is pinned", "it copies a tensor from the CPU, which a graph cannot"),
    ("during cuda graph capture", "it copies a tensor of the CPU, which a graph cannot"),
    ("unjoined work", "it starts work on another stream and does not wait for it"),
    ("generator", "it draws random numbers from a generator of its own"),
    ("offset increment outside graph capture", "it draws random numbers from another generator"),
)
"""What torch says, in small letters, and what it means."""
FOLLOWS_FROM_ANOTHER = ("previous error during capture", "streamcaptureinvalidated")
EMPTY = "nothing of it ran on the device, so there is nothing to replay"
NO_DEVICE = "CUDA graphs need a CUDA device"

_streams: dict[int, torch.cuda.Stream] = {}
"""One per device, as every stream that multiplies matrices gets tens of megabytes for it."""


class Captured:
    """Work that was recorded once and can be started again as a whole.

    `output` is what the step returned: its tensors are those that every replay overwrites.
    `seconds` is what warm-up and recording took, `nbytes` the memory that the graph keeps. What
    the step reads and writes stays at its place, so the step is kept alive.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, step: Step, output: Any, *, seconds: float, nbytes: int
    ) -> None:
        self._graph, self._step = graph, step
        self.output, self.seconds, self.nbytes = output, seconds, nbytes

    def replay(self) -> Any:
        """Do the work again, on the current stream, and return the same output, overwritten."""
        self._graph.replay()
        return self.output

    @property
    def pool(self) -> Any:
        """The memory of the graph, for others that never run at the same time."""
        return self._graph.pool()


def taken_bytes(device: str | torch.device) -> int | None:
    """Count the memory of a CUDA device that this process holds and cannot do without."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def why_not_captured(device: str | torch.device) -> str:
    """Return why nothing can be captured on a device, or nothing."""
    if torch.device(device).type != "cuda":
        return f"{NO_DEVICE}, and this model is on {device}"
    return "" if torch.cuda.is_available() else f"{NO_DEVICE}, and torch finds none"


def capture(
    step: Step, *, device: str | torch.device, warmups: int = 3, pool: Any = None
) -> Captured:
    """Call a step for warm-up, then once to record what it does on the device.

    The step takes nothing and reads and writes tensors that stay where they are. It is called
    `warmups` times, at least once, and then to record it, which computes nothing: state that it
    advances is advanced `warmups` times, and by a part of a step more if that step waits for the
    device. `pool` is that of another graph whose memory may be shared: then the two must not run
    at the same time, and outputs are read before the other runs. Until it ends, other threads may
    use the device, but not draw numbers from its default generator.

    Raises ModelError in one line if the step cannot be captured; the device stays usable.
    """
    if warmups < 1:
        raise SettingError(f"warmups must be at least 1, got {warmups}")
    reason = why_not_captured(device)
    if reason:
        raise SettingError(reason)
    index: Any = torch.device(device).index  # None is the current one
    place = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    memory = torch.cuda.graph_pool_handle() if pool is None else pool
    started, known = perf_counter(), sys.exception()
    waited: Exception | None = None
    with torch.cuda.device(place), _casting_anew():
        if torch.cuda.is_current_stream_capturing():
            raise ModelError("another graph is being captured on this stream; end that first")
        try:
            waited = _warm_up(step, place, warmups)
            before = _pool_bytes(memory)
            graph, output = _record(step, place, memory)
        except BaseException as error:
            _free_frames(error, known)
            _tidy_up(place, memory)
            if isinstance(error, ModelError) or not isinstance(error, Exception):
                raise
            cause = _explained(waited or error)
            raise ModelError(f"the step cannot be captured: {cause}") from error
        torch.cuda.synchronize(place)
        nbytes = _pool_bytes(memory) - before
    return Captured(graph, step, output, seconds=perf_counter() - started, nbytes=nbytes)


def _warm_up(step: Step, place: torch.device, warmups: int) -> Exception | None:
    """Run what happens only on first calls, and return the first host synchronisation, if any.

    That is no error yet: some code waits only while nothing is recorded.
    """
    stream, waited = _stream(place), None
    stream.wait_stream(torch.cuda.current_stream(place))
    with torch.cuda.stream(stream):
        for _ in range(warmups - 1):
            step()
        known = sys.exception()
        try:
            with _refusing_to_wait():
                step()
        except RuntimeError as error:
            if WAITS not in str(error).lower():
                raise
            _free_frames(error, known)
            waited = error
        if waited is not None:
            step()
    torch.cuda.current_stream(place).wait_stream(stream)
    torch.cuda.synchronize(place)
    return waited


def _record(step: Step, place: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    # No garbage is collected while recording: what that frees may belong to another graph.
    with gc_paused(), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with _recording(graph, place, pool):
            output = step()
    if any("graph is empty" in str(each.message).lower() for each in heard):
        raise ModelError(f"the step cannot be captured: {EMPTY}")
    for leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.device != place:
            raise ModelError(
                f"the step cannot be captured: it returns a tensor on {leaf.device}, which a "
                "replay would not compute again"
            )
    return graph, output


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, place: torch.device, pool: Any) -> Iterator[None]:
    # Other threads may go on allocating memory while this one records.
    recording: Any = torch.cuda.graph(
        graph, pool=pool, stream=_stream(place), capture_error_mode="thread_local"
    )
    current = torch.cuda.current_stream(place)
    try:
        with recording:
            yield
    finally:
        torch.cuda.set_stream(current)  # which torch leaves out if ending the recording fails


def _stream(place: torch.device) -> torch.cuda.Stream:
    if place.index not in _streams:
        make_stream: Any = torch.cuda.Stream
        _streams[place.index] = make_stream(place)
    return _streams[place.index]


# ---------------------------------------------------------------- around it


@contextmanager
def _casting_anew() -> Iterator[None]:
    """Let autocast keep no weights from the calls before: they would be freed behind the graph."""
    before = torch.is_autocast_cache_enabled()
    set_enabled: Any = torch.set_autocast_cache_enabled
    set_enabled(False)
    try:
        yield
    finally:
        set_enabled(before)


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Raise where a step waits for the device: much clearer than the error while recording.

    That holds for all threads of the process, so with others beside this one it is left out.
    """
    if threading.active_count() > 1:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _pool_bytes(pool: Any) -> int:
    """Count the memory that the allocator keeps for the graphs of a pool."""
    segments: Any = torch.cuda.memory_snapshot
    own = [each for each in segments() if tuple(each.get("segment_pool_id", ())) == tuple(pool)]
    return sum(each["total_size"] for each in own)


def _tidy_up(place: torch.device, pool: Any) -> None:
    """Make the device usable after something failed: nothing runs, records or is kept."""
    gc.collect()
    actions: tuple[Any, ...] = (
        lambda: torch.cuda.synchronize(place),
        lambda: _leave_pool(place, pool),
        lambda: _record_something(place),
        torch.cuda.empty_cache,
    )
    for action in actions:
        with suppress(Exception):  # the error before is what matters
            action()


def _free_frames(error: BaseException | None, known: BaseException | None = None) -> None:
    """Let go of the variables of functions that an error ended: their tensors take memory.

    Frames of an error that was `known` before are left alone.
    """
    while error is not None and error is not known:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _leave_pool(place: torch.device, pool: Any) -> None:
    """Let the allocator know that nothing is recorded any more; it raises if it knows."""
    names = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
    end: Any = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
    release: Any = getattr(torch._C, "_cuda_releasePool", None)
    if end is not None and release is not None:
        end(place.index, pool)
        release(place.index, pool)


def _record_something(place: torch.device) -> None:
    """End what an interrupted recording left open.

    A recording that the driver gave up leaves the random generator waiting for its end; the next
    one that ends well ends that, too.
    """
    number = torch.zeros(1, device=place)
    torch.cuda.synchronize(place)
    graph = torch.cuda.CUDAGraph()
    with _recording(graph, place, None):
        number.add_(1)
    graph.reset()


# ---------------------------------------------------------------- what went wrong


def _explained(error: Exception) -> str:
    """Say in one line what cannot be captured, and where."""
    cause = _first_cause(error)
    where = users_place(cause)
    if isinstance(cause, torch.cuda.OutOfMemoryError):
        return f"the device has too little memory for it: {first_line(cause)}"
    from_torch = str(cause).lower()
    meant = next((meaning for text, meaning in CAUSES if text in from_torch), "")
    return f"{meant or why_it_failed(cause)}{where}"


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that came first: ending a broken recording raises another one."""
    while error.__context__ is not None and any(
        text in str(error).lower() for text in FOLLOWS_FROM_ANOTHER
    ):
        error = error.__context__
    return error

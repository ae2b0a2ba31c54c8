"""Measuring ceilings with PyTorch: its matrix products on the processor, and CUDA devices.

Import this file only once torch is imported, or for a CUDA device."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any

import torch

from tinytorch.errors import BackendError, first_line
from tinytorch.measure.ceilings import Bandwidth, Ceilings, Progress, Rate
from tinytorch.measure.ceilings_cpu import Steps, best_matrix_rate, now
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WALL, Clock, measure_time

CPU_DTYPES = ("float32", "float64", "bfloat16", "float16", "int8")
CUDA_DTYPES = ("float32", "tf32", "float64", "float16", "bfloat16", "int8")
CUDA_STEPS = len(CUDA_DTYPES) + 2
CPU_SIZES = (256, 512, 1024, 2048, 4096)
CUDA_SIZES = (1024, 2048, 4096, 8192)
# Some devices and versions lack a dtype, and say so with any of these.
REFUSALS = (RuntimeError, NotImplementedError, TypeError, AttributeError)
MEMORY_SET_BYTES = 2 << 30
COPIES_PER_GRAPH = 32
PASSES_OVER_CACHE = 32

Advance = Callable[[str], None]


@dataclass(frozen=True)
class CudaEventClock:
    """The clock of a CUDA device: seconds between two events on its current stream.

    Calls are queued without waiting in between, so the device idles only where the program is too
    slow to keep it busy; that counts. Replayed graphs run on the current stream and are seen; work
    on a stream that the current one does not wait for is not.
    """

    device: torch.device
    name: str = "cuda events"
    resolution_s: float = 0.5e-6
    is_disturbed_by_host: bool = False

    def time(self, function: Callable[[], object], loops: int) -> float:
        """Return the seconds on the device for `loops` calls together."""
        start, end = self._events
        with torch.cuda.device(self.device):
            start.record()
            for _ in range(loops):
                function()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    @cached_property
    def _events(self) -> tuple[Any, Any]:
        """Make the events once: making the second would take time between them."""
        event: Any = torch.cuda.Event
        both = event(enable_timing=True), event(enable_timing=True)
        with torch.cuda.device(self.device):
            for each in both:  # the driver makes an event when it is first recorded
                each.record()
        return both


def identify_cuda(name: str, machine: str) -> tuple[str, str]:
    """Return the full name of a CUDA device, and its fingerprint in this machine."""
    if not torch.cuda.is_available():
        lacks = "finds no CUDA device" if _cuda_version() else "was built without CUDA"
        raise BackendError(f"device {name!r}: this PyTorch ({torch.__version__}) {lacks}")
    number, count = name.partition(":")[2], torch.cuda.device_count()
    index = int(number) if number else torch.cuda.current_device()
    if index >= count:
        raise BackendError(f"device {name!r}: there are {count}, counted from cuda:0 on")
    properties = torch.cuda.get_device_properties(index)
    facts = (properties.name, properties.total_memory, properties.multi_processor_count)
    text = repr((machine, facts, torch.__version__, _cuda_version()))
    return f"cuda:{index}", hashlib.sha256(text.encode()).hexdigest()[:16]


def measure_cuda(
    name: str, fingerprint: str, *, seconds: float, progress: Progress | None
) -> Ceilings:
    """Measure everything about a CUDA device."""
    device = torch.device(name)
    steps = Steps(progress)
    with torch.no_grad():
        bandwidths, missing = _cuda_bandwidths(device, budget_s=seconds / 3, advance=steps)
        rates, refused = torch_rates(device, budget_s=2 * seconds / 3, advance=steps)
    cache_bytes = _cache_bytes(device)
    return Ceilings(
        device=name,
        rates=rates,
        bandwidths=bandwidths,
        cache_bytes={"L2": cache_bytes} if cache_bytes else {},
        fingerprint=fingerprint,
        measured_at=now(),
        not_measured={**missing, **refused},
        device_name=torch.cuda.get_device_name(device),
    )


def _cuda_version() -> str | None:
    return getattr(torch.version, "cuda", None)


def torch_rates(
    device: torch.device | None = None, *, budget_s: float, advance: Advance
) -> tuple[tuple[Rate, ...], dict[str, str]]:
    """Measure PyTorch's matrix products, on the processor or a CUDA device.

    The second result has the dtypes that it refused, with what it said.
    """
    is_cuda = device is not None
    place = device or torch.device("cpu")
    dtypes, sizes = (CUDA_DTYPES, CUDA_SIZES) if is_cuda else (CPU_DTYPES, CPU_SIZES)
    clock: Clock = CudaEventClock(place) if is_cuda else WALL
    rates, refused = [], {}
    for dtype in dtypes:
        advance(f"PyTorch {dtype} rate")
        try:
            with torch.no_grad(), _float32_mode(dtype, is_cuda):
                samples = best_matrix_rate(
                    f"PyTorch {dtype}",
                    _product(dtype, place),
                    sizes=sizes,
                    budget_s=budget_s / len(dtypes),
                    clock=clock,
                )
        except REFUSALS as error:
            refused[f"{dtype} rate"] = first_line(error)
        else:
            rates.append(Rate(dtype, "torch", samples))
    if is_cuda:
        torch.cuda.empty_cache()
    return tuple(rates), refused


def _product(dtype: str, device: torch.device) -> Callable[[int], Callable[[], object]]:
    generator = torch.Generator(device).manual_seed(0)

    def at(size: int) -> Callable[[], object]:
        shape = (size, size)
        if dtype == "int8":
            left, right = (
                torch.randint(-128, 128, shape, generator=generator, device=device).to(torch.int8)
                for _ in range(2)
            )
            int_mm: Any = torch._int_mm
            # The order in which every integer kernel takes its right side.
            right = right.t().contiguous().t()
            return lambda: int_mm(left, right)
        kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        left, right = (
            torch.randn(shape, generator=generator, device=device).to(kind) for _ in range(2)
        )
        result = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=result)

    return at


@contextmanager
def _float32_mode(dtype: str, is_cuda: bool) -> Iterator[None]:
    """Multiply float32 exactly on CUDA, or as TF32, inside the block."""
    if not is_cuda or dtype not in ("float32", "tf32"):
        yield
        return
    settings: Any = torch.backends.cuda.matmul
    # New versions have `fp32_precision` and warn about the other one.
    key = "fp32_precision" if hasattr(settings, "fp32_precision") else "allow_tf32"
    wanted: object = dtype == "tf32"
    if key == "fp32_precision":
        wanted = "tf32" if dtype == "tf32" else "ieee"
    previous = getattr(settings, key)
    setattr(settings, key, wanted)
    try:
        yield
    finally:
        setattr(settings, key, previous)


def _cuda_bandwidths(
    device: torch.device, *, budget_s: float, advance: Advance
) -> tuple[tuple[Bandwidth, ...], dict[str, str]]:
    """Measure the bandwidth of a CUDA device's memory and of its L2 cache."""
    clock = CudaEventClock(device)
    bandwidths, failed = [], {}
    cache_bytes = _cache_bytes(device)
    if cache_bytes is None:
        failed["L2 bandwidth"] = "PyTorch does not say how large this device's L2 cache is"
    else:
        advance("L2 bandwidth")
        try:
            bandwidths.append(_cache_bandwidth(device, cache_bytes, clock, budget_s / 2))
        except REFUSALS as error:
            failed["L2 bandwidth"] = first_line(error)
    advance("HBM bandwidth")
    bandwidths.append(_memory_bandwidth(device, clock, budget_s / 2))
    torch.cuda.empty_cache()
    return tuple(bandwidths), failed


def _cache_bytes(device: torch.device) -> int | None:
    return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or None


def _memory_bandwidth(device: torch.device, clock: Clock, budget_s: float) -> Bandwidth:
    """Copy and read far more than the cache holds."""
    free, _ = torch.cuda.mem_get_info(device)
    words = min(MEMORY_SET_BYTES, free // 4) // 4 // 2
    source = torch.randn(words, device=device)
    target = torch.empty_like(source)
    copy = _bytes_per_second(
        "HBM copy", lambda: target.copy_(source), 8 * words, clock, budget_s / 2
    )
    read = _bytes_per_second("HBM read", lambda: source.sum(), 4 * words, clock, budget_s / 2)
    return Bandwidth("HBM", 8 * words, read, copy, threads=1)


def _cache_bandwidth(
    device: torch.device, cache_bytes: int, clock: Clock, budget_s: float
) -> Bandwidth:
    """Copy and read half of the cache again and again."""
    words = cache_bytes // 2 // 4 // 2
    source = torch.randn(words, device=device)
    target = torch.empty_like(source)
    # One launch takes as long as such a copy; a graph launches many copies at once.
    copies = _captured(lambda: target.copy_(source), COPIES_PER_GRAPH, device)
    moved = 8 * words * COPIES_PER_GRAPH
    copy = _bytes_per_second("L2 copy", copies, moved, clock, budget_s / 2)
    # For the same reason one kernel sums the same words many times.
    many = source.expand(PASSES_OVER_CACHE, words)
    moved = 4 * words * PASSES_OVER_CACHE
    read = _bytes_per_second("L2 read", lambda: many.sum(dim=1), moved, clock, budget_s / 2)
    return Bandwidth("L2", 8 * words, read, copy, threads=1, capacity_bytes=cache_bytes)


def _captured(
    function: Callable[[], object], repeats: int, device: torch.device
) -> Callable[[], None]:
    """Return a function that replays `repeats` calls as one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        function()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                function()
    return graph.replay


def _bytes_per_second(
    name: str, function: Callable[[], object], moved: int, clock: Clock, budget_s: float
) -> Samples:
    times = measure_time(function, name=name, budget_s=budget_s, clock=clock, max_runs=200)
    rates = tuple(moved / seconds for seconds in times.values)
    return Samples(name, rates, "B/s", times.loops, times.notes)


# ---------------------------------------------------------------- emptying caches with PyTorch:
# those of its threads' cores, and the L2 of a CUDA device

UNKNOWN_L2_BYTES = 128 << 20
"""Where PyTorch does not say how large the L2 cache is; none is larger so far."""
TIMES_THE_CACHE = 2


def threaded_flush(nbytes: int) -> Callable[[], None]:
    """Return a function that reads `nbytes` with all threads of PyTorch."""
    words = torch.ones(nbytes // 4)

    def flush() -> None:
        words.sum()

    return flush


def device_flush(name: str) -> Callable[[], None]:
    """Return a function that overwrites the L2 cache of a CUDA device, on the current stream.

    It returns when that is done. Behind it a call could be started while the device is still busy
    with emptying, which would take a part of what starting it costs off its time.
    """
    device = torch.device(name)
    held = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    nbytes = TIMES_THE_CACHE * (held or UNKNOWN_L2_BYTES)
    buffer = torch.empty(nbytes // 4, dtype=torch.int32, device=device)

    def flush() -> None:
        buffer.zero_()
        torch.cuda.synchronize(device)

    return flush


# ---------------------------------------------------------------- whether CUDA devices multiply
# float32 numbers as TF32: with 11 bits each instead of 24
#
# That is a setting of the whole process. Imported after torch.


def multiplies_in_tf32() -> bool:
    """Return whether products of float32 matrices use TF32."""
    settings: Any = torch.backends.cuda.matmul
    # Since torch 2.9; the older name raises once the newer one was used.
    if hasattr(settings, "fp32_precision"):
        return bool(settings.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


def convolves_in_tf32() -> bool:
    """Return whether convolutions of float32 use TF32."""
    settings: Any = torch.backends.cudnn
    if hasattr(settings, "conv"):
        return bool(settings.conv.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


class _Multiplying:
    """A block in which products of float32 matrices are TF32, in all threads.

    The first that enters changes the setting, and the last that leaves puts it back. The older name
    of the setting is the one that every version of torch.compile reads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before: str | None = None
        self._is_changed = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside and not multiplies_in_tf32():
                settings: Any = torch.backends.cuda.matmul
                self._before = getattr(settings, "fp32_precision", None)
                _hear_warning_once()
                settings.allow_tf32 = self._is_changed = True
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or not self._is_changed:
                return
            self._is_changed = False
            settings: Any = torch.backends.cuda.matmul
            settings.allow_tf32 = False
            if self._before is not None:
                settings.fp32_precision = "none"  # what holds for all of torch, unless it differs
                if settings.fp32_precision != self._before:
                    settings.fp32_precision = self._before


multiplying_in_tf32 = _Multiplying()
"""The block."""


@cache
def _hear_warning_once() -> None:
    """Trigger torch's deprecation warning for this setting, and discard it."""
    settings: Any = torch.backends.cuda.matmul
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings.allow_tf32 = True

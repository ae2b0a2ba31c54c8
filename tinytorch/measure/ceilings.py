"""The ceilings of a machine: how fast it computes and moves bytes, at best, as measured."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import util
from pathlib import Path
from typing import Protocol

from tinytorch.codec import Coded
from tinytorch.core.files import cache_folder, read_kept, write_kept
from tinytorch.errors import MissingPartError, SettingError, check_number
from tinytorch.measure.samples import Samples

SECONDS = 8.0
CEILING_PERCENTILE = 90.0
"""Disturbances only slow things down, so a ceiling is what the best tenth of the values reached."""
PATIENCE, MOST_PATIENCE = timedelta(minutes=10), timedelta(days=1)
"""Ceilings measured under disturbance are measured again after this time, and after twice as much
with every attempt: some machines are never quiet."""

_known: dict[Path, Ceilings] = {}
_measuring = threading.RLock()


class Progress(Protocol):
    """A receiver of progress updates."""

    def advance(self, steps: int = 1) -> None:
        """Count finished steps."""

    def describe(self, text: str) -> None:
        """Describe the current step."""


@dataclass(frozen=True)
class Rate(Coded):
    """The rate of large matrix products of one dtype by one library.

    FLOP/s, two per multiply-accumulate; for integers operations/s, counted the same way.
    """

    dtype: str
    library: str
    samples: Samples

    @cached_property
    def ceiling(self) -> float:
        """The 90th percentile of the values, the rate that others are judged by."""
        return self.samples.percentile(CEILING_PERCENTILE)

    @property
    def best(self) -> float:
        return self.samples.maximum

    @property
    def median(self) -> float:
        return self.samples.median

    @property
    def spread(self) -> float:
        """The robust relative spread of the values around their median."""
        return self.samples.stability.relative_spread


@dataclass(frozen=True)
class Bandwidth(Coded):
    """How many bytes per second a level of the memory moves, all `threads` together.

    `copy` counts the bytes read and the bytes written. `working_set_bytes` is what was touched,
    by all threads together, and `capacity_bytes` what the level holds for them all; None for the
    memory behind the caches.
    """

    level: str
    working_set_bytes: int
    read: Samples | None
    copy: Samples
    threads: int
    capacity_bytes: int | None = None

    @cached_property
    def ceiling(self) -> float:
        """The 90th percentile of reads or copies, whichever is higher."""
        uses = [self.copy] if self.read is None else [self.copy, self.read]
        return max(use.percentile(CEILING_PERCENTILE) for use in uses)


@dataclass(frozen=True)
class Ceilings(Coded):
    """What one device can do at best. Levels stand from the fastest to the memory behind them.

    `cache_bytes` maps a level to what it holds for all threads in force, `not_measured` what is
    missing to the reason, `disturbances` says what else used the machine meanwhile (the true
    ceilings are then probably higher).
    """

    device: str
    rates: tuple[Rate, ...]
    bandwidths: tuple[Bandwidth, ...]
    cache_bytes: Mapping[str, int]
    fingerprint: str
    measured_at: str
    not_measured: Mapping[str, str] = field(default_factory=dict)
    disturbances: tuple[str, ...] = ()
    attempts: int = 1
    notes: tuple[str, ...] = ()
    device_name: str = ""

    strict = True

    def __post_init__(self) -> None:
        if not self.bandwidths:
            raise SettingError(f"ceilings of {self.device!r} without a bandwidth; measure one")
        found = [each.ceiling for each in self.rates] + [each.ceiling for each in self.bandwidths]
        if not min(found) > 0:
            raise SettingError(f"ceilings of {self.device!r} that are not above 0; measure again")

    def peak_flops(self, dtype: str) -> float | None:
        """Return the FLOP/s of the fastest library for a dtype, or None if it was not measured.

        The dtypes are "float32", "float64", "bfloat16", "float16", "int8" (operations/s) and on
        a GPU "tf32".
        """
        return max((rate.ceiling for rate in self.rates if rate.dtype == dtype), default=None)

    def bandwidth(self, working_set_bytes: int | None = None) -> float:
        """Return the bytes/s of the smallest level that holds the working set.

        Without a working set, or with one larger than every cache: of the memory behind them.
        """
        return self._holding(working_set_bytes).ceiling

    def level(self, working_set_bytes: int | None = None) -> str:
        """Return the name of the smallest measured level that holds the working set."""
        return self._holding(working_set_bytes).level

    def ridge(self, dtype: str, working_set_bytes: int | None = None) -> float | None:
        """Return the ridge point in FLOP per byte, or None without a peak for the dtype."""
        peak = self.peak_flops(dtype)
        return None if peak is None else peak / self.bandwidth(working_set_bytes)

    def has_library(self, library: str) -> bool:
        """Return whether any rate was measured with a library, such as "torch"."""
        return any(rate.library == library for rate in self.rates)

    @property
    def is_doubtful(self) -> bool:
        """Whether these were measured under disturbance, long enough ago to be measured again."""
        if not self.disturbances:
            return False
        patience = min(PATIENCE * 2 ** min(self.attempts - 1, 20), MOST_PATIENCE)
        try:
            return datetime.now(UTC) - datetime.fromisoformat(self.measured_at) > patience
        except (ValueError, TypeError):  # no date, or one without a time zone
            return True

    def improved_by(self, later: Ceilings) -> Ceilings:
        """Return the later ceilings, keeping earlier ones that were higher."""
        rates = {(rate.dtype, rate.library): rate for rate in self.rates}
        for rate in later.rates:
            earlier = rates.setdefault((rate.dtype, rate.library), rate)
            if rate.ceiling > earlier.ceiling:
                rates[rate.dtype, rate.library] = rate
        levels = {each.level: each for each in self.bandwidths}
        bandwidths = (
            max(each, levels.get(each.level, each), key=lambda of: of.ceiling)
            for each in later.bandwidths
        )
        known = {f"{rate.dtype} rate" for rate in rates.values()}
        missing = {what: why for what, why in later.not_measured.items() if what not in known}
        return replace(
            later,
            rates=tuple(rates.values()),
            bandwidths=tuple(bandwidths),
            not_measured=missing,
            attempts=self.attempts + 1,
        )

    def _holding(self, working_set_bytes: int | None) -> Bandwidth:
        wanted = math.inf if working_set_bytes is None else working_set_bytes
        if wanted < 0:
            raise SettingError(f"working_set_bytes={working_set_bytes}; it cannot be negative")
        fitting = (each for each in self.bandwidths if wanted <= (each.capacity_bytes or 0))
        return next(fitting, self.bandwidths[-1])


def machine_ceilings(
    device: str = "cpu", *, refresh: bool = False, progress: Progress | None = None
) -> Ceilings:
    """Return the ceilings of a device, measured once, in about 8 seconds, and cached.

    `device` is "cpu", "cuda" or "cuda:1". They are measured again with `refresh`, and when
    hardware, usable cores, threads or library versions have changed. What PyTorch adds to the
    processor's is measured as soon as torch is imported. They are kept in a file below
    TINYTORCH_CACHE, XDG_CACHE_HOME or ~/.cache; where that cannot be written a note says so.

    Rates and bandwidths are both of the threads in force: those of ``torch.get_num_threads()`` once
    torch is imported, before that what OPENBLAS_NUM_THREADS, OMP_NUM_THREADS and the like allow
    NumPy, else all usable cores.
    """
    # These need the classes above, and most programs need neither.
    from tinytorch.measure.ceilings_cpu import add_torch_rates

    device, fingerprint = _identify(device)
    with _measuring:
        path = ceilings_file(device, fingerprint)
        found = None if refresh else _known.get(path) or load_ceilings(path)
        if found is None:
            fresh = measure_ceilings(device, progress=progress)
        elif found.is_doubtful:
            fresh = found.improved_by(measure_ceilings(device, progress=progress))
        elif device == "cpu" and torch_is_imported() and not found.has_library("torch"):
            fresh = add_torch_rates(found, seconds=SECONDS, progress=progress)
        else:
            _known[path] = found
            return found
        problem = save_ceilings(fresh, path)
        _known[path] = replace(fresh, notes=(*fresh.notes, problem)) if problem else fresh
        return _known[path]


def known_ceilings(device: str = "cpu") -> Ceilings | None:
    """Return the ceilings of a device where they were measured before; measure nothing."""
    path = ceilings_file(*_identify(device))
    return _known.get(path) or load_ceilings(path)


def measure_ceilings(
    device: str = "cpu", *, seconds: float = SECONDS, progress: Progress | None = None
) -> Ceilings:
    """Measure the ceilings of a device now, in about `seconds`, and cache nothing.

    The processor's matrix products are NumPy's and, once torch is imported, PyTorch's (then only
    PyTorch's where NumPy has more threads). The smaller caches need numba; what is missing stands
    in `not_measured` with the reason.
    """
    check_number("seconds", seconds, above=0)
    device, fingerprint = _identify(device)
    if device == "cpu":
        from tinytorch.measure.ceilings_cpu import measure_cpu

        return measure_cpu(fingerprint, seconds=seconds, progress=progress)
    from tinytorch.measure.ceilings_torch import measure_cuda

    return measure_cuda(device, fingerprint, seconds=seconds, progress=progress)


def measuring_steps(device: str = "cpu") -> int:
    """Return the number of steps of a measurement, for a progress bar."""
    _identify(device)
    if device == "cpu":
        from tinytorch.measure.ceilings_cpu import count_steps

        return count_steps()
    from tinytorch.measure.ceilings_torch import CUDA_STEPS

    return CUDA_STEPS


def torch_is_imported() -> bool:
    """Return whether torch has been imported; this module never imports it."""
    return "torch" in sys.modules


def _identify(device: str) -> tuple[str, str]:
    """Return the full name of a device and the fingerprint of what determines its speed."""
    from tinytorch.measure.environment import describe_environment

    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise SettingError(f"device {device!r}; it must be cpu, cuda or cuda:N")
    environment = describe_environment()
    if device == "cpu":
        return device, environment.fingerprint
    # Asking for a CUDA device is asking for torch, so it may be imported here.
    if not torch_is_imported() and util.find_spec("torch") is None:
        raise MissingPartError(
            f"device {device!r} needs PyTorch; install the extra: pip install '.[torch]'"
        )
    from tinytorch.measure.ceilings_torch import identify_cuda

    return identify_cuda(device, environment.fingerprint)


# ---------------------------------------------------------------- keeping measured ceilings on
# disk: one file for each device and fingerprint

SCHEMA = 1
"""Raise it when the meaning of a field changes; files of another version are measured again."""


def ceilings_file(device: str, fingerprint: str) -> Path:
    """Return the path of the cached ceilings of a device."""
    safe = re.sub(r"\W", "-", device)
    return cache_folder() / f"ceilings-{safe}-{fingerprint}.json"


def load_ceilings(path: Path) -> Ceilings | None:
    """Read ceilings; None when there are none, or none that this version understands."""
    try:
        return Ceilings.from_dict(read_kept(path, schema=SCHEMA)["ceilings"])
    # Whatever is wrong with the file: it can be measured again.
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def save_ceilings(ceilings: Ceilings, path: Path) -> str | None:
    """Write ceilings; when the folder cannot be written, give a sentence that says so."""
    return write_kept(path, schema=SCHEMA, ceilings=ceilings.to_dict())

"""What a monitor has seen, as JSON: written by the service, read by `tinytorch monitor report`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import ClassVar
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tinytorch import reading
from tinytorch.codec import Coded, DataError
from tinytorch.errors import Note, RecordError, SettingError, first_line
from tinytorch.monitoring.changes import Change
from tinytorch.monitoring.histogram import Distribution
from tinytorch.monitoring.reference import Reference
from tinytorch.showing import Shown

MOST_BYTES = 32 << 20
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ShapeCount(Coded):
    """How often inputs of one shape were seen; an empty shape stands for all that are rare."""

    shape: tuple[int, ...]
    calls: int


@dataclass(frozen=True)
class SizeBin(Coded):
    """Calls whose first input has a number of elements in one power of two."""

    size: int
    latency: Distribution
    shapes: tuple[ShapeCount, ...] = ()

    @property
    def name(self) -> str:
        """The shape that is seen most, such as 8x3x224x224."""
        named = [each for each in self.shapes if each.shape]
        if not named:
            return "no tensor" if not self.size else f"under {2**self.size:,} elements"
        return "x".join(map(str, max(named, key=lambda each: each.calls).shape))


@dataclass(frozen=True)
class SampledLayer(Coded):
    """A layer in the sampled calls: its own seconds in all of them, and in how many it ran."""

    path: str
    kind: str
    self_s: float
    calls: int


@dataclass(frozen=True)
class MinuteSummary(Coded):
    """One minute of the service."""

    ended: float
    calls: int
    p50_s: float | None
    p99_s: float | None
    memory_bytes: float
    probe_s: float | None = None


@dataclass(frozen=True, repr=False)
class Snapshot(Coded, Shown):
    """What one process has seen since `started`; moments are seconds since 1970.

    `requests` are whole requests, `queued` the part before the model was called in them, `latency`
    calls of the model. `errors` are exceptions of the model, `faults` those of the monitor, which
    nobody else has seen. `layers` add up to `sampled_s` with what is outside of them.
    """

    schema: ClassVar[int] = 1

    name: str
    framework: str
    device: str
    process: int
    started: float
    taken: float
    sample: float
    requests: Distribution
    queued: Distribution
    in_flight: int
    most_in_flight: int
    errors: int
    faults: int
    last_fault: str
    sizes: tuple[SizeBin, ...]
    sampled: int
    sampled_s: float
    layers: tuple[SampledLayer, ...]
    memory_bytes: float
    most_memory_bytes: float
    minutes: tuple[MinuteSummary, ...]
    changes: tuple[Change, ...]
    learned_minutes: int
    learning_minutes: int
    reference: Reference | None = None
    processes: int = 1

    @property
    def latency(self) -> Distribution:
        """All calls of the model."""
        return Distribution.joined(each.latency for each in self.sizes)

    @property
    def seconds(self) -> float:
        """How long the monitor ran."""
        return max(1e-9, self.taken - self.started)

    @property
    def active(self) -> tuple[Change, ...]:
        """The changes that last."""
        return tuple(each for each in self.changes if each.ended is None)

    @property
    def is_learning(self) -> bool:
        return self.learned_minutes < self.learning_minutes

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to doubt about it."""
        found = []
        if self.is_learning:
            words = f"learning the reference: {self.learned_minutes} of {self.learning_minutes} min"
            found.append(Note(f"{words}; changes are looked for after that", "learning"))
        if self.sampled < 100 and self.layers:
            found.append(Note(f"layer times rest on {self.sampled} sampled calls", "few-samples"))
        if self.faults:
            words = f"the monitor failed {self.faults} times and lost what it was counting; latest"
            found.append(Note(f"{words}: {self.last_fault}", "faults"))
        if self.device != "cpu":
            words = f"calls on {self.device} are timed by events, and sampled ones only"
            found.append(Note(words, "device-events"))
        return tuple(found)


def joined(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return what several worker processes have seen together."""
    if not snapshots:
        raise SettingError("there is no snapshot to report")
    first = max(snapshots, key=lambda each: each.taken)
    if len(snapshots) == 1:
        return first
    return replace(
        first,
        started=min(each.started for each in snapshots),
        requests=Distribution.joined(each.requests for each in snapshots),
        queued=Distribution.joined(each.queued for each in snapshots),
        in_flight=sum(each.in_flight for each in snapshots),
        most_in_flight=sum(each.most_in_flight for each in snapshots),
        errors=sum(each.errors for each in snapshots),
        faults=sum(each.faults for each in snapshots),
        sizes=_joined_sizes(snapshots),
        sampled=sum(each.sampled for each in snapshots),
        sampled_s=sum(each.sampled_s for each in snapshots),
        layers=_joined_layers(snapshots),
        memory_bytes=sum(each.memory_bytes for each in snapshots),
        most_memory_bytes=sum(each.most_memory_bytes for each in snapshots),
        changes=tuple(change for each in snapshots for change in each.changes),
        processes=sum(each.processes for each in snapshots),
    )


def _joined_sizes(snapshots: Sequence[Snapshot]) -> tuple[SizeBin, ...]:
    bins: dict[int, list[SizeBin]] = {}
    for each in snapshots:
        for found in each.sizes:
            bins.setdefault(found.size, []).append(found)
    return tuple(
        SizeBin(
            size,
            Distribution.joined(each.latency for each in found),
            _joined_shapes(shape for each in found for shape in each.shapes),
        )
        for size, found in sorted(bins.items())
    )


def _joined_shapes(shapes: Iterable[ShapeCount]) -> tuple[ShapeCount, ...]:
    totals: dict[tuple[int, ...], int] = {}
    for each in shapes:
        totals[each.shape] = totals.get(each.shape, 0) + each.calls
    return tuple(ShapeCount(shape, calls) for shape, calls in totals.items())


def _joined_layers(snapshots: Sequence[Snapshot]) -> tuple[SampledLayer, ...]:
    found: dict[str, SampledLayer] = {}
    for layer in (layer for each in snapshots for layer in each.layers):
        before = found.get(layer.path, replace(layer, self_s=0.0, calls=0))
        found[layer.path] = replace(
            before, self_s=before.self_s + layer.self_s, calls=before.calls + layer.calls
        )
    return tuple(found.values())


# ---------------------------------------------------------------- reading one


def read_snapshot(place: str) -> Snapshot:
    """Return the snapshot in a file, at a URL, or those of all processes in a folder."""
    if urlsplit(place).scheme in ("http", "https"):
        return parse(_fetched(place), place)
    path = Path(place)
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise RecordError(f"{place} has no snapshot; name the folder that a Monitor writes to")
        return joined([parse(_read(each), str(each)) for each in files])
    if not path.exists():
        raise SettingError(
            f"there is no file {place}; pass a snapshot that a Monitor wrote, a folder of them, "
            "or the URL of a service"
        )
    return parse(_read(path), place)


def parse(content: bytes, place: str) -> Snapshot:
    """Return the snapshot in JSON; raise RecordError with what does not fit."""
    try:
        fields = reading.parse_json(content)
    except ValueError as error:
        raise RecordError(f"{place} holds no snapshot: {first_line(error)}") from error
    if not isinstance(fields, Mapping):
        raise RecordError(f"{place} holds no snapshot but a {type(fields).__name__}")
    try:
        return Snapshot.from_dict(fields)
    except (DataError, SettingError) as error:
        raise RecordError(f"{place} holds no snapshot: {error}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _limited(file.read(MOST_BYTES + 1), str(path))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error


def _fetched(url: str) -> bytes:
    request = Request(url, headers={"Accept": "application/json"})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            end, parts, size = monotonic() + TIMEOUT_S, [], 0
            while part := answer.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    break
                if monotonic() > end:
                    raise RecordError(f"{url} took longer than {TIMEOUT_S:g} s to answer")
            return _limited(b"".join(parts), url)
    except URLError as error:
        reason = getattr(error, "reason", error)
        raise RecordError(f"{url} gave no snapshot: {reason}") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"{url} gave no snapshot: {first_line(error)}") from error


def _limited(content: bytes, place: str) -> bytes:
    if len(content) > MOST_BYTES:
        raise RecordError(f"{place} is larger than {MOST_BYTES >> 20} MB, so it is no snapshot")
    return content

"""What a rank has recorded, as a file of lines that grows step by step.

A rank that dies leaves the lines that it has written; one that was cut off is left out. Times are
microseconds: moments of the rank's own clock, and inside of a step since its begin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tinytorch.errors import RecordError

SCHEMA = 1
LARGEST_FILE = 200_000
"""Bytes that a rank writes unless a full trace is asked for."""
FOR_THE_END = 20_000
"""Bytes of these that are left for what is written after the steps: clocks, ceilings, the end."""
INPUT, FORWARD, BACKWARD, OPTIMIZER = "input", "forward", "backward", "optimizer"
PHASES = (INPUT, FORWARD, BACKWARD, OPTIMIZER)


class Site(NamedTuple):
    """A collective of a program: what it does, between whom, and how much is moved."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str


class Call(NamedTuple):
    """One call of a collective; `number` counts those of its group, `done` is -1 if never seen."""

    site: int
    number: int
    launched: int
    done: int


class Span(NamedTuple):
    """What the main thread did for a while: one of `PHASES`."""

    phase: str
    begin: int
    end: int


class Wait(NamedTuple):
    """The main thread was blocked until a call was done; all that were underway, if `call` is -1.

    `call` is the place of the call among those of its step; `back` says how many steps before.
    """

    begin: int
    end: int
    call: int
    back: int


@dataclass(frozen=True)
class StepRecord:
    """One step of one rank: moments in microseconds since `begin`, which is one of its clock."""

    number: int
    begin: int
    duration: int
    spans: tuple[Span, ...]
    calls: tuple[Call, ...] = ()
    waits: tuple[Wait, ...] = ()
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Clock:
    """At `at` of the rank's clock, that of rank 0 was `offset` ahead, up to `error`."""

    at: int
    offset: float
    error: float


@dataclass
class RankRecord:
    """All that one rank has written; `end` is empty where it did not come to its end."""

    rank: int
    world: int
    head: dict[str, Any] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    ceilings: list[tuple[int, float]] = field(default_factory=list)
    """Place of a site -> seconds of the bare collective."""
    links: list[tuple[int, int, float]] = field(default_factory=list)
    """Sender, receiver, bytes per second; each by its sender."""
    overhead: list[tuple[float, float]] = field(default_factory=list)
    """Median seconds of a step in neighbouring blocks of steps: not watched, watched."""
    stalls: list[dict[str, Any]] = field(default_factory=list)
    end: str = ""
    nbytes: int = 0

    @property
    def own_share(self) -> float | None:
        """The share of the time that the recorder itself took in this rank."""
        return self.head.get("own_share")


class RankWriter:
    """Writes the lines of one rank; each is whole in the file when `write` returns."""

    def __init__(self, folder: Path, rank: int, *, limit: int | None = LARGEST_FILE) -> None:
        self.path = file_of(folder, rank)
        self._limit = limit
        self._file = self.path.open("w", encoding="utf-8")
        self.nbytes = 0

    def write(self, kind: str, content: Any) -> None:
        line = json.dumps([kind, content], separators=(",", ":")) + "\n"
        self._file.write(line)
        self._file.flush()
        self.nbytes += len(line)

    def write_step(self, step: StepRecord) -> bool:
        """Write a step; return False, having written nothing, where there is no room for it."""
        if self._limit is not None and self.nbytes > self._limit - FOR_THE_END:
            return False
        spans = [n for each in step.spans for n in (PHASES.index(each.phase), *each[1:])]
        calls = [number for each in step.calls for number in each]
        waits = [number for each in step.waits for number in each]
        row = [step.number, step.begin, step.duration, spans, calls, waits, list(step.layers)]
        self.write("step", row)
        return True

    def close(self) -> None:
        self._file.close()


def file_of(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank{rank}.jsonl"


def read_rank(path: Path) -> RankRecord:
    """Read the file of a rank, up to the last whole line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    found: RankRecord | None = None
    for kind, content in _whole_lines(lines):
        if kind == "head":
            if content.get("schema") != SCHEMA:
                raise RecordError(f"{path} is of schema {content.get('schema')}, not {SCHEMA}")
            found = RankRecord(content["rank"], content["world"], content)
        elif found is not None:
            _READ[kind](found, content)
    if found is None:
        raise RecordError(f"{path} holds no record of a rank; give the folder that ranks wrote to")
    found.nbytes = path.stat().st_size
    return found


def read_folder(folder: Path) -> list[RankRecord]:
    """Read what the ranks have written into a folder; raise RecordError where there is nothing."""
    paths = sorted(folder.glob("rank[0-9]*.jsonl"))
    if not paths:
        raise RecordError(f"{os.fspath(folder)} holds no files rank0.jsonl, rank1.jsonl, ...")
    records = []
    for path in paths:
        try:
            records.append(read_rank(path))
        except RecordError:  # Killed before its first line; others have more to tell.
            continue
    if not records:
        raise RecordError(f"{os.fspath(folder)} holds no file with a whole line")
    return sorted(records, key=lambda each: each.rank)


def _whole_lines(lines: list[str]) -> Iterator[tuple[str, Any]]:
    for line in lines:
        try:
            kind, content = json.loads(line)
        except ValueError:  # The rank was killed while it wrote this line.
            return
        yield kind, content


def _read_step(record: RankRecord, row: list[Any]) -> None:
    number, begin, duration, spans, calls, waits, layers = row
    record.steps.append(
        StepRecord(
            number,
            begin,
            duration,
            tuple(Span(PHASES[phase], *ends) for phase, *ends in _rows(spans, 3)),
            tuple(Call(*each) for each in _rows(calls, 4)),
            tuple(Wait(*each) for each in _rows(waits, 4)),
            tuple(layers),
        )
    )


def _rows(flat: list[int], width: int) -> Iterator[tuple[int, ...]]:
    return zip(*[iter(flat)] * width, strict=True)


def _read_site(record: RankRecord, row: list[Any]) -> None:
    kind, group, ranks, nbytes, dtype = row
    record.sites.append(Site(kind, group, tuple(ranks), nbytes, dtype))


def _read_end(record: RankRecord, content: dict[str, Any]) -> None:
    record.end = content["reason"]
    record.head.update(content)


_READ = {
    "site": _read_site,
    "layers": lambda record, names: record.layers.extend(names),
    "clock": lambda record, row: record.clocks.append(Clock(*row)),
    "step": _read_step,
    "ceiling": lambda record, row: record.ceilings.append((row[0], row[1])),
    "link": lambda record, row: record.links.append((row[0], row[1], row[2])),
    "overhead": lambda record, row: record.overhead.append((row[0], row[1])),
    "stall": lambda record, content: record.stalls.append(content),
    "end": _read_end,
}
"""Kind of a line -> what adds it to the record."""

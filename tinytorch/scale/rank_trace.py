"""The steps of all ranks as one trace for Perfetto: a track for each rank, its transfers below.

The format is the Trace Event Format, with times in microseconds of rank 0's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinytorch.scale.accounting import RankStep, Timeline, align
from tinytorch.scale.rank_file import read_folder

MAIN, TRANSFERS = 1, 2


def merged_trace(folder: Path) -> dict[str, Any]:
    """Return the trace of what the ranks have written, ready for JSON."""
    timeline = align([each for each in read_folder(folder) if each.steps])
    begins = [step.begin for steps in timeline.steps.values() for step in steps.values()]
    origin = min(begins, default=0.0)
    events = [
        event
        for rank, steps in timeline.steps.items()
        for event in _track(rank, list(steps.values()), timeline, origin)
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _track(
    rank: int, steps: list[RankStep], timeline: Timeline, origin: float
) -> Iterator[dict[str, Any]]:
    yield _named("process_name", rank, 0, f"rank {rank}")
    yield _named("thread_name", rank, MAIN, "steps")
    yield _named("thread_name", rank, TRANSFERS, "collectives")
    for step in steps:
        yield _complete(f"step {step.number}", rank, MAIN, step.begin - origin, step.duration)
        for phase, begin, end in step.spans:
            yield _complete(phase, rank, MAIN, begin - origin, end - begin)
        for begin, end, key in step.waits:
            kind = timeline.collectives[key].site.kind if key else "all collectives"
            yield _complete(f"wait for {kind}", rank, MAIN, begin - origin, end - begin)
        for key in step.keys:
            matched = timeline.collectives[key]
            if rank not in matched.done:
                continue
            begin, end = matched.launched[rank], matched.done[rank]
            last = matched.last_rank if matched.is_complete else None
            facts = {"bytes": matched.site.nbytes, "number": key[1], "last rank": last}
            number = f"{rank}:{key[0]}:{key[1]}"
            common = {"cat": "collective", "pid": rank, "tid": TRANSFERS, "id": number}
            name = matched.site.kind.strip("_")
            # Transfers overlap each other, hence async events.
            yield {"ph": "b", "name": name, "ts": begin - origin, "args": facts, **common}
            yield {"ph": "e", "name": name, "ts": end - origin, **common}


def _complete(name: str, rank: int, track: int, begin: float, duration: float) -> dict[str, Any]:
    place = {"pid": rank, "tid": track}
    return {"ph": "X", "name": name, "cat": "step", "ts": begin, "dur": duration, **place}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}

"""Steps of ranks as a script wants them, without any process."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tinytorch.scale.rank_file import (
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    Call,
    Clock,
    RankRecord,
    Site,
    Span,
    StepRecord,
    Wait,
)

SITE = Site("allreduce", "0", (0, 1), 1 << 20, "float32")


def one_record(
    rank: int, steps: Sequence[StepRecord], *, world: int = 2, offset: float = 0.0
) -> RankRecord:
    """Return the record of a rank that came to its end."""
    ranks = tuple(range(world))
    return RankRecord(
        rank,
        world,
        {"backend": "gloo", "host": "here"},
        [SITE._replace(ranks=ranks)],
        clocks=[Clock(0, offset, 5.0)],
        steps=list(steps),
        end="finished",
    )


def scripted_run(
    work: Mapping[int, Sequence[float]],
    *,
    inputs: Mapping[int, Sequence[float]] | None = None,
    transfer: float = 2000.0,
    offset: Callable[[int], float] = lambda rank: 0.0,
) -> list[RankRecord]:
    """Return ranks that compute for so many microseconds, then reduce once and wait for it.

    Forward and backward pass take half of the work each. `offset` is by how much the clock of rank
    0 is ahead of a rank's.
    """
    world, count = len(work), len(next(iter(work.values())))
    steps: dict[int, list[StepRecord]] = {rank: [] for rank in work}
    begin = 1e6
    for number in range(count):
        loads = {rank: (inputs or {}).get(rank, np.zeros(count))[number] for rank in work}
        arrivals = {rank: begin + loads[rank] + work[rank][number] for rank in work}
        done = max(arrivals.values()) + transfer
        for rank in work:
            load, late = round(loads[rank]), round(arrivals[rank] - begin)
            half, end = load + (late - load) // 2, round(done - begin)
            spans = (
                Span(INPUT, 0, load),
                Span(FORWARD, load, half),
                Span(BACKWARD, half, end),
                Span(OPTIMIZER, end, end + 100),
            )
            steps[rank].append(
                StepRecord(
                    number,
                    round(begin - offset(rank)),
                    end + 150,
                    spans,
                    (Call(0, number, late, end),),
                    (Wait(late, end, -1, 0),),
                )
            )
        begin = done + 150
    return [one_record(rank, steps[rank], world=world, offset=offset(rank)) for rank in work]

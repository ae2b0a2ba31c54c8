"""Each moment of a step is counted once, and on the right side of the last arrival."""

import numpy as np
import pytest
from scripted_ranks import SITE, one_record, scripted_run

from tinytorch.scale.accounting import (
    PARTS,
    align,
    length,
    split,
    transfers_by_site,
    union,
    within,
    without,
)
from tinytorch.scale.rank_file import BACKWARD, FORWARD, Call, Span, StepRecord, Wait


def parts_of(records, rank, number=0):
    timeline = align(records)
    return split(timeline.steps[rank][number], timeline.collectives)


def test_the_early_rank_waits_and_both_see_the_transfer():
    records = scripted_run({0: [10_000.0], 1: [14_000.0]}, transfer=2000.0)
    early, late = parts_of(records, 0), parts_of(records, 1)
    assert (early["waiting"], late["waiting"]) == (4000, 0)
    assert (early["exposed"], late["exposed"]) == (2000, 2000)
    assert (early["compute"], late["compute"]) == (10_100, 14_100)
    assert (early["host"], late["host"]) == (50, 50)


@pytest.mark.parametrize("offset", [-3e9, 0.0, 7e8])
def test_clocks_that_are_apart_change_nothing(offset):
    work = {0: [10_000.0] * 3, 1: [12_000.0] * 3}
    plain = scripted_run(work)
    apart = scripted_run(work, offset=lambda rank: rank * offset)
    for rank in work:
        assert parts_of(apart, rank, 2) == pytest.approx(parts_of(plain, rank, 2), abs=2)


def test_a_transfer_during_the_backward_pass_is_hidden():
    def step(launched):
        spans = (Span(FORWARD, 0, 1000), Span(BACKWARD, 1000, 5000))
        return StepRecord(0, 0, 5000, spans, (Call(0, 0, launched, 3000),), ())

    records = [one_record(0, [step(1500)]), one_record(1, [step(2000)])]
    parts = parts_of(records, 0)
    # From the last arrival, at 2000, to the end of the transfer.
    assert (parts["hidden"], parts["compute"]) == (1000, 4000)
    assert (parts["exposed"], parts["waiting"]) == (0, 0)


def test_input_is_told_from_compute():
    records = scripted_run({0: [9000.0], 1: [9000.0]}, inputs={0: [0.0], 1: [3000.0]})
    assert parts_of(records, 1)["input"] == 3000
    assert parts_of(records, 0)["waiting"] == 3000


def test_what_only_one_rank_launched_is_waiting():
    records = scripted_run({0: [5000.0], 1: [5000.0]})
    records[1].steps[0] = StepRecord(0, 10**6, 7150, (), (), ())
    parts = parts_of(records, 0)
    assert (parts["waiting"], parts["exposed"]) == (2000, 0)


def test_a_wait_for_a_call_of_the_step_before_is_known():
    call, wait = Call(0, 0, 900, 1300), Wait(100, 300, 0, 1)
    steps = [
        StepRecord(0, 0, 1000, (), (call,), ()),
        StepRecord(1, 1000, 1000, (), (), (wait,)),
    ]
    parts = parts_of([one_record(0, steps), one_record(1, steps)], 0, 1)
    assert (parts["exposed"], parts["host"]) == (200, 800)


def test_parts_add_up_whatever_was_recorded(rng):
    for _ in range(60):
        steps = [
            StepRecord(
                0,
                int(rng.integers(0, 500)),
                1000,
                tuple(Span(BACKWARD, *sorted(rng.integers(0, 1100, 2))) for _ in range(2)),
                tuple(Call(0, n, *sorted(rng.integers(0, 1200, 2))) for n in range(3)),
                tuple(
                    Wait(*sorted(rng.integers(0, 1000, 2)), call, 0)
                    for call in rng.permutation([-1, 0, 2])
                ),
            )
            for _ in range(2)
        ]
        records = [one_record(rank, [step]) for rank, step in enumerate(steps)]
        for rank in (0, 1):
            parts = parts_of(records, rank)
            assert set(parts) == set(PARTS)
            assert min(parts.values()) >= 0
            assert sum(parts.values()) == pytest.approx(1000)


def test_transfers_that_overlap_in_a_group_are_not_counted_twice():
    calls = (Call(0, 0, 0, 1000), Call(0, 1, 100, 1500))
    steps = [StepRecord(0, 0, 2000, (), calls, ())]
    times = transfers_by_site(align([one_record(0, steps), one_record(1, steps)]))
    (found,) = times.values()
    assert sorted(found) == [500, 1000]
    assert next(iter(times)) == SITE


def test_intervals_agree_with_a_grid(rng):
    for _ in range(100):
        lists = [
            union((int(a), int(b)) for a, b in np.sort(rng.integers(0, 60, (4, 2)), axis=1))
            for _ in range(2)
        ]
        one, other = (
            {t for begin, end in each for t in range(int(begin), int(end))} for each in lists
        )
        assert length(within(*lists)) == len(one & other)
        assert length(without(*lists)) == len(one - other)

import dataclasses

import pytest
from measure.imaginary import ceilings

from tinytorch.measure.samples import Samples
from tinytorch.profiling.context import Work, find_insights, work_bound

STEADY = Samples("", (0.001,) * 20)
MACHINE = ceilings()


def memory(*, peak, kept, baseline=0.0):
    return {"baseline_mb": baseline, "peak_mb": baseline + peak, "allocated_mb": kept}


def test_nothing_measured_gives_nothing_to_say():
    assert find_insights() == ()


@pytest.mark.parametrize(
    ("work", "start"),
    [
        (Work(flops=1000, bytes_moved=10**9, working_set_bytes=10**9), "memory-bound"),
        (Work(flops=10**9, bytes_moved=1000, working_set_bytes=1000), "compute-bound"),
    ],
)
def test_the_roofline_says_what_limits(work, start):
    found = find_insights(STEADY, work=work, ceilings=MACHINE)
    assert found[0].startswith(start)
    assert "of what the machine allows" in found[1]


def test_what_only_moves_bytes_is_judged_by_the_bandwidth():
    work = Work(flops=0, bytes_moved=10**6, working_set_bytes=10**9)
    found = find_insights(STEADY, work=work, ceilings=MACHINE)
    assert found[0] == "memory-bound: it moves bytes and computes nothing"
    share = 10**6 / 0.001 / MACHINE.bandwidth(10**9)
    assert found[1] == f"reaches {share:.1%} of this machine's bandwidth"


def test_no_work_at_all_is_no_insight():
    assert find_insights(STEADY, work=Work(0), ceilings=MACHINE) == find_insights(STEADY)


def test_work_is_placed_under_the_roof_with_all_that_it_computes():
    work = Work(flops=600, other_flops=400, bytes_moved=100, working_set_bytes=100)
    bound = work_bound(STEADY, work, MACHINE)
    assert bound.achieved == pytest.approx(1000 / 0.001)
    assert bound.intensity == 10
    assert bound.bandwidth == MACHINE.bandwidth(100)


def test_without_bytes_only_the_share_of_the_peak_is_said():
    (speed, *_) = find_insights(STEADY, work=Work(flops=10**7), ceilings=MACHINE)
    share = 10**7 / 0.001 / MACHINE.peak_flops("float32")
    assert speed.startswith(f"reaches {share:.1%} of this machine's float32 peak")


def test_a_tiny_share_is_not_shown_as_nothing():
    (speed, *_) = find_insights(STEADY, work=Work(flops=1), ceilings=MACHINE)
    assert speed.startswith("reaches less than 0.1%")


def test_without_ceilings_nothing_is_said_about_speed():
    without = find_insights(STEADY, work=Work(flops=10**7, bytes_moved=10))
    assert without == find_insights(STEADY)


@pytest.mark.parametrize("seconds", [1e-6, 1e-3, 10.0])
def test_how_long_it_takes_is_no_insight(seconds):
    scaled = dataclasses.replace(STEADY, values=(seconds,) * 20)
    assert find_insights(scaled) == find_insights(STEADY)


def test_variance_is_reported_with_its_numbers():
    shaky = Samples("", (0.001, 0.0013) * 10)
    assert any(note.startswith("unstable") for note in find_insights(shaky))


def test_a_long_tail_warns_of_the_mean():
    found = find_insights(Samples("", (0.001,) * 19 + (0.005,)))
    assert "took 5.0 times the median (1 slow outliers), so the mean of 1.2 ms misleads" in (
        " ".join(found)
    )


def test_a_single_run_says_nothing_about_variance():
    assert find_insights(Samples("", (0.001,))) == ("n=1: the variation of the time is unknown",)


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (memory(peak=10, kept=1), "90% of the 10.00 MB at the peak is freed again"),
        (memory(peak=10, kept=8, baseline=100), "keeps 8.00 MB of the 10.00 MB"),
        (memory(peak=1, kept=-2), "frees 2.00 MB more than it allocates"),
        (memory(peak=0, kept=0), "allocates nothing"),
    ],
)
def test_the_pattern_of_allocation_is_named(stats, words):
    (found,) = find_insights(memory=stats)
    assert words in found

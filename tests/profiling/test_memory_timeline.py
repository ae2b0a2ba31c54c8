import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tinytorch.models.records import Allocation
from tinytorch.profiling.profile import MemoryTimeline


def buffer(nbytes, born, died=None, *, category="activations", path="", phase="forward"):
    return Allocation(
        nbytes, category, path, phase, float(born), None if died is None else float(died)
    )


def resident(nbytes, category="parameters", path=""):
    return buffer(nbytes, 0, category=category, path=path, phase="resident")


STEP = MemoryTimeline(
    (
        resident(1000, path="a"),
        resident(50, "buffers", "a"),
        resident(200, "inputs", None),
        resident(500, "optimizer state", None),
        buffer(10, 1, 4, path="a"),
        buffer(30, 2, 3, path="b"),
        buffer(40, 3, 6, path="b"),
        buffer(25, 5, category="gradients", path="a", phase="backward"),
        buffer(5, 5.5, 6.5, category="temporaries", path=None, phase="update"),
    )
)

CATEGORIES = ["parameters", "buffers", "inputs", "optimizer state", "activations", "gradients"]
moments = st.integers(0, 8)
lives = st.lists(
    st.tuples(
        st.integers(0, 100), moments, st.none() | st.integers(1, 5), st.sampled_from(CATEGORIES)
    ),
    max_size=12,
).map(
    lambda drawn: MemoryTimeline(
        tuple(
            buffer(size, born, None if age is None else born + age, category=category)
            for size, born, age, category in drawn
        )
    )
)


def alive(timeline, moment):
    """Give what is alive right after a moment."""
    return [
        each
        for each in timeline.allocations
        if each.born <= moment and (each.died is None or each.died > moment)
    ]


def total(buffers):
    return sum(each.nbytes for each in buffers)


# ---------------------------------------------------------------- peaks


def test_a_step_by_hand():
    assert STEP.peak_bytes == 1750 + 40 + 25 + 5
    assert STEP.peak_time == 5.5
    assert STEP.peak_activation_bytes == 70
    assert STEP.allocated_bytes == 10 + 30 + 40 + 25 + 5
    assert STEP.allocated_by_path() == {"a": 10, "b": 70}
    assert STEP.peak_by_path == {"a": 1075, "b": 40, None: 705}
    assert STEP.peak_by_category == {
        "parameters": 1000,
        "buffers": 50,
        "inputs": 200,
        "optimizer state": 500,
        "activations": 40,
        "gradients": 25,
        "temporaries": 5,
    }


@given(lives)
def test_the_peak_is_the_most_that_is_alive_at_any_moment(timeline):
    levels = [total(alive(timeline, moment)) for moment in range(15)]
    assert timeline.peak_bytes == max(levels)
    made = [
        total(each for each in alive(timeline, moment) if each.category in CATEGORIES[4:])
        for moment in range(15)
    ]
    assert timeline.peak_activation_bytes == max(made)


@given(lives)
def test_what_is_alive_at_the_peak_adds_up_to_it(timeline):
    assert total(timeline.at_peak) == timeline.peak_bytes
    assert sum(timeline.peak_by_category.values()) == timeline.peak_bytes
    assert sum(timeline.peak_by_path.values()) == timeline.peak_bytes


@given(lives)
def test_points_follow_the_level_of_every_category(timeline):
    for moment, held in dict(timeline.points).items():  # the last point of each moment
        for category in CATEGORIES:
            there = [e for e in alive(timeline, moment) if e.category == category]
            assert held.get(category, 0) == total(there)


def test_memory_that_is_freed_and_taken_again_at_one_moment_is_not_counted_twice():
    timeline = MemoryTimeline((buffer(100, 1, 2), buffer(100, 2, 3)))
    assert timeline.peak_bytes == 100


def test_without_buffers_there_is_no_memory():
    empty = MemoryTimeline(())
    assert (empty.peak_bytes, empty.peak_activation_bytes, empty.allocated_bytes) == (0, 0, 0)
    assert (empty.at_peak, empty.points, empty.peak_time) == ((), (), 0.0)
    assert empty.series() == {"seconds": [], "categories": {}, "total": []}


# ---------------------------------------------------------------- for pictures


@pytest.mark.parametrize("buckets", [1, 3, 200])
def test_a_series_shows_the_peaks_of_every_category(buckets):
    series = STEP.series(buckets)
    assert len(series["seconds"]) == buckets
    assert {name: max(values) for name, values in series["categories"].items()} == {
        "parameters": 1000,
        "buffers": 50,
        "inputs": 200,
        "optimizer state": 500,
        "activations": 50,
        "gradients": 25,
        "temporaries": 5,
    }


@given(lives, st.integers(1, 7))
def test_a_series_has_the_highest_level_of_each_span_of_time(timeline, buckets):
    series = timeline.series(buckets)
    changes = sorted({moment for moment, _ in timeline.points})
    edges = [*changes[:1], *series["seconds"]]
    assume(len(changes) > 1)  # otherwise no time passes
    for category, values in (*series["categories"].items(), (None, series["total"])):
        for index, value in enumerate(values):
            begin, end = edges[index : index + 2]
            is_last = index == buckets - 1
            inside = [each for each in changes if begin <= each and (each < end or is_last)]
            before = [each for each in changes if each < begin]
            levels = [
                total(each for each in alive(timeline, moment) if category in (None, each.category))
                for moment in (*before[-1:], *inside)
            ]
            assert value == max(levels)


def test_a_series_of_what_never_changes_is_flat():
    series = MemoryTimeline((resident(100), resident(50, "inputs"))).series(4)
    assert series["categories"] == {"inputs": [50.0] * 4, "parameters": [100.0] * 4}
    assert series["total"] == [150] * 4


@given(lives, st.integers(1, 20), st.booleans())
def test_the_total_reaches_the_peak_and_never_exceeds_it(timeline, buckets, from_first_change):
    assume(timeline.allocations)
    series = timeline.series(buckets, from_first_change=from_first_change)
    assert len(series["total"]) == len(series["seconds"]) == buckets
    assert max(series["total"]) == timeline.peak_bytes
    sums = [sum(levels) for levels in zip(*series["categories"].values(), strict=True)]
    # categories peak at different times
    assert all(level <= most for level, most in zip(series["total"], sums, strict=True))


def test_the_time_before_the_first_change_can_be_left_out():
    timeline = MemoryTimeline((resident(10), buffer(5, 0.9, 1.0)))
    assert timeline.series(4)["total"] == [10, 10, 10, 15]
    late = timeline.series(2, from_first_change=True)
    assert late["total"] == [15, 15]
    assert late["seconds"] == pytest.approx([0.95, 1.0])


def test_the_peak_is_looked_for_once():
    timeline = MemoryTimeline((resident(1000), buffer(10, 1, 2)))
    looks = []

    class Points(tuple):
        def __iter__(self):
            looks.append(1)
            return super().__iter__()

    timeline.__dict__["points"] = Points(timeline.points)
    assert [timeline.peak_bytes for _ in range(3)] == [1010] * 3
    assert len(looks) == 1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.transforms.support.training import CubicSchedule


@st.composite
def ramps(draw):
    steps = draw(st.integers(1, 300))
    return CubicSchedule(
        steps,
        start=draw(st.floats(0, 0.99)),
        warmup=draw(st.integers(0, steps - 1)),
        every=draw(st.integers(1, 50)),
    )


@given(schedule=ramps(), target=st.floats(0, 0.999))
def test_sparsity_only_grows_reaches_the_target_and_never_passes_it(schedule, target):
    values = [schedule(step, target) for step in range(schedule.steps + 20)]
    assert values == sorted(values)
    assert values[schedule.steps :] == [target] * 20
    assert max(values) <= target
    assert values[0] == min(schedule.start, target)


@given(schedule=ramps())
def test_nothing_changes_during_the_warm_up_nor_between_the_times(schedule):
    values = [schedule(step, 0.995) for step in range(schedule.steps)]
    changes = [step for step in range(1, len(values)) if values[step] != values[step - 1]]
    assert all((step - schedule.warmup) % schedule.every == 0 for step in changes)
    assert all(step >= schedule.warmup for step in changes)


def test_the_cube_is_that_of_zhu_and_gupta():
    schedule = CubicSchedule(110, start=0.2, warmup=10, every=1)
    for step in range(10, 110):
        expected = 0.9 + (0.2 - 0.9) * (1 - (step - 10) / 100) ** 3
        assert schedule(step, 0.9) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CubicSchedule(0), "steps must be at least 1"),
        (lambda: CubicSchedule(5, warmup=5), r"warmup must be in 0..4"),
        (lambda: CubicSchedule(5, start=1.0), "start must be at least 0 and below 1"),
        (lambda: CubicSchedule(5, every=0), "every must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()

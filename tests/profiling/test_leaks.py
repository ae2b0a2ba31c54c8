import gc
import tracemalloc

import pytest
from classic_models import KINDS, call, make_input, make_model
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.profiling.memory_profiler import LeakReport, detect_leak


def test_a_function_that_keeps_nothing_does_not_leak():
    report = detect_leak(lambda: [bytearray(1000)] * 3)
    assert not report.is_leaking
    assert str(report).startswith("no leak in 20 calls")


def test_a_list_that_grows_leaks_what_is_put_into_it():
    kept = []
    report = detect_leak(lambda: kept.append(bytearray(5000)))
    assert (report.is_leaking, report.pattern) == (True, "linear")
    # Beside the bytes there is the object around them and the list's own room.
    assert report.growth_per_call_bytes == pytest.approx(5000, abs=300)
    assert "memory grows (linear) by 5," in str(report)


def test_cycles_are_garbage_not_leaks():
    def make_cycle():
        knot = [bytearray(5000)]
        knot.append(knot)

    gc.disable()
    try:
        report = detect_leak(make_cycle)
    finally:
        gc.enable()
    assert not report.is_leaking


def test_a_cache_that_fills_settles():
    cache = {}

    def look_up(calls=iter(range(100))):  # noqa: B008
        cache.setdefault(next(calls) % 5, bytearray(5000))

    report = detect_leak(look_up)
    assert (report.is_leaking, report.pattern) == (False, "settles")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_does_not_leak_but_its_kept_outputs_do(kind):
    model, x = make_model(kind), make_input(kind)
    kept = []
    assert not detect_leak(lambda: call(model, x), calls=10).is_leaking
    assert detect_leak(lambda: kept.append(call(model, x)), calls=10).is_leaking


def test_tensors_of_torch_count():
    torch = require_part("torch")
    kept = []
    report = detect_leak(lambda: kept.append(torch.zeros(25_000)), calls=10)
    assert report.growth_per_call_bytes == pytest.approx(100_000, rel=0.02)


@pytest.mark.parametrize(
    ("growth", "pattern", "is_leaking"),
    [
        ([10] * 8, "constant", False),
        ([900, 900, 0, 0, 0, 0, 0, 0], "settles", False),
        ([500] * 8, "linear", True),
        ([500, 500, 500, 500, 500, 900, 1400, 2000], "accelerating", True),
        ([0, 800, 0, 800, 0, 800, 0, 800], "in steps", True),
        ([0, 0, 0, 0, 0, 800, 0, 0], "in steps", False),
        ([500, -500] * 4, "in steps", False),
    ],
)
def test_patterns_of_growth(growth, pattern, is_leaking):
    readings = tuple(sum(growth[: index + 1]) for index in range(len(growth)))
    report = LeakReport(readings, noise_bytes=50)
    assert (report.pattern, report.is_leaking, report.growth) == (
        pattern,
        is_leaking,
        tuple(growth),
    )


@pytest.mark.parametrize("calls", [0, 7, 8.5])
def test_too_few_calls_are_refused(calls):
    with pytest.raises(SettingError, match=f"calls={calls}"):
        detect_leak(lambda: None, calls=calls)


def test_an_exception_leaves_tracing_as_it_was():
    with pytest.raises(ZeroDivisionError):
        detect_leak(lambda: 1 / 0)
    assert not tracemalloc.is_tracing()


@pytest.mark.slow
def test_objects_set_aside_by_somebody_else_stay_so():
    def is_set_aside(thing: object) -> bool:
        return not any(other is thing for other in gc.get_objects())

    gc.unfreeze()
    detect_leak(lambda: None, calls=8)
    assert gc.get_freeze_count() == 0
    kept = [object()]
    assert not is_set_aside(kept)
    gc.freeze()
    try:
        # The count alone may fall: objects of other threads die while they are set aside.
        detect_leak(lambda: None, calls=8)
        assert is_set_aside(kept)
    finally:
        gc.unfreeze()

"""The best attempts at other sizes: what is compared, and what is said about it."""

import json
import math
from time import monotonic

import numpy as np
import pytest
from called_models import FRAMEWORKS

from tinytorch import Workload, optimize
from tinytorch.cli.main import main
from tinytorch.errors import SettingError
from tinytorch.reporting.document import document_of
from tinytorch.tuning.at_sizes import (
    BROKEN,
    checked_sizes,
    compare_at_sizes,
    notes_at_sizes,
)
from tinytorch.tuning.attempt import Attempt, Settings
from tinytorch.tuning.optimization import AtSize, Optimization


@pytest.fixture(params=FRAMEWORKS)
def kit(request):
    return FRAMEWORKS[request.param]()


def workload(kit, kind="Added", axes=2, **settings):
    x = np.random.default_rng(0).standard_normal((4, 3, 256)[-axes:]).astype(np.float32)
    return Workload("model", getattr(kit, kind)(256), {"x": kit.tensor(x)}, **settings)


def slow_and_fast(ratio):
    """Return a comparison whose speedup is known."""
    return _Known(ratio)


class _Known:
    def __init__(self, speedup):
        self.verdict = "faster" if speedup > 1.05 else "slower" if speedup < 0.95 else "same"
        self.speedup = speedup
        self.speedup_low, self.speedup_high = 0.9 * speedup, 1.1 * speedup
        self.speedup_interval = (self.speedup_low, self.speedup_high)


def at(size, attempt, speedup):
    return AtSize("batch", size, attempt, _Known(speedup) if speedup else None)


# ---------------------------------------------------------------- what was asked for


def test_sizes_are_sorted_and_each_once(kit):
    found = checked_sizes(workload(kit), (8, 1, 8), ())
    assert found == {"batch": (1, 8)}
    assert checked_sizes(workload(kit, axes=3), (), (5,)) == {"sequence": (5,)}


@pytest.mark.parametrize("sizes", [(0,), (1.5,), (True,), ("8",)])
def test_sizes_are_whole_numbers(kit, sizes):
    with pytest.raises(SettingError, match="give whole numbers from 1 on"):
        checked_sizes(workload(kit), sizes, ())


def test_an_axis_that_no_input_has_is_an_error(kit):
    work = Workload("model", kit.Added(), kit.tensor(np.ones(6, np.float32)))
    with pytest.raises(SettingError):
        checked_sizes(work, (2,), ())


def test_the_command_takes_lists_of_numbers():
    assert main(["optimize", "mlp", "--batch", "1,x"]) == 2


# ---------------------------------------------------------------- comparing


def test_each_size_is_compared_and_the_usual_one_is_known(kit):
    known = Attempt(("int8-dynamic",), "better", "", comparison=slow_and_fast(2.0))
    found = compare_at_sizes(
        workload(kit),
        {"batch": (1, 3, 9)},
        recommended=known,
        others=[known],
        settings=Settings(max_output_error=1.0),
        until=monotonic() + 3.0,
    )
    assert [each.size for each in found] == [1, 3, 9]
    assert {each.attempt for each in found} == {"int8-dynamic"}
    assert all(each.comparison is not None for each in found), [each.reason for each in found]


def test_the_size_of_the_inputs_is_not_measured_again(kit):
    known = Attempt(("int8-dynamic",), "better", "", comparison=slow_and_fast(2.0))
    found = compare_at_sizes(
        workload(kit, axes=3),
        {"batch": (4,), "sequence": (3,)},
        recommended=known,
        others=[],
        settings=Settings(),
        until=-math.inf,
    )
    assert [each.comparison for each in found] == [known.comparison] * 2


def test_without_time_or_with_an_error_there_is_a_reason(kit):
    known = Attempt(("int8-dynamic",), "better", "", comparison=slow_and_fast(2.0))
    asked = {"sizes": {"batch": (2,)}, "recommended": known, "others": []}
    late = compare_at_sizes(workload(kit), **asked, settings=Settings(), until=-math.inf)
    assert (late[0].comparison, late[0].reason) == (None, "not tried: time budget")

    class Fixed(kit.Added):
        def forward(self, x):
            if x.shape[0] != 4:
                raise ValueError("four examples")
            return super().forward(x)

    x = kit.tensor(np.ones((4, 256), np.float32))
    until = monotonic() + 3.0
    fixed = Workload("fixed", Fixed(256), (x,))
    found = compare_at_sizes(fixed, **asked, settings=Settings(), until=until)
    assert found[0].comparison is None
    assert "four examples" in found[0].reason


def test_broken_outputs_are_not_timed(kit, monkeypatch):
    from tinytorch.tuning import at_sizes

    class Broken(kit.Added):
        def forward(self, x):
            return super().forward(x) * math.nan

    class Built:
        model = Broken(256)

    monkeypatch.setattr(at_sizes, "build_stack", lambda *_: Built)
    known = Attempt(("int8-dynamic",), "better", "", comparison=slow_and_fast(2.0))
    found = compare_at_sizes(
        workload(kit),
        {"batch": (2,)},
        recommended=known,
        others=[],
        settings=Settings(),
        until=monotonic() + 3.0,
    )
    assert (found[0].comparison, found[0].reason) == (None, BROKEN)


# ---------------------------------------------------------------- what is said


def test_a_size_at_which_another_attempt_is_faster_has_a_note():
    found = [at(1, "a", 0.8), at(1, "b", 1.5), at(8, "a", 2.0), at(8, "b", 1.2)]
    notes = list(notes_at_sizes(found, "a"))
    assert len(notes) == 1
    assert notes[0].startswith("at batch 1 ")
    assert "b" in notes[0]


def test_overlapping_intervals_make_no_other_recommendation():
    assert list(notes_at_sizes([at(1, "a", 1.5), at(1, "b", 1.6)], "a")) == []


def test_a_size_without_a_gain_has_a_note():
    assert list(notes_at_sizes([at(1, "a", 0.8)], "a")) == ["at batch 1 a: slower"]
    assert list(notes_at_sizes([at(1, "a", None)], "a")) == []


def test_a_gain_where_nothing_was_recommended_has_a_note():
    assert len(list(notes_at_sizes([at(1, "b", 1.5), at(8, "b", 0.9)], ""))) == 1


# ---------------------------------------------------------------- the whole way


def test_optimize_answers_for_several_sizes_and_its_json_keeps_them(kit):
    found = optimize(
        workload(kit), only=["int8-dynamic"], batch=(2, 4), max_output_error=1.0, budget_s=40.0
    )
    assert {each.size for each in found.at_sizes} == {2, 4}
    back = Optimization.from_dict(json.loads(json.dumps(found.to_dict())))
    assert [each.size for each in back.at_sizes] == [each.size for each in found.at_sizes]
    titles = [getattr(each, "title", "") for each in document_of(found).blocks]
    assert "Other sizes" in titles

import json
import math
from dataclasses import dataclass

import pytest
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.models.zoo import load_zoo
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step, Transform

UNKNOWN = {"speedup": "not measured", "shrinkage": "stays the same"}
STEP = Step("layers.0", "Linear in int8", "it holds most of the bytes", {"bits": 8})
PLAN = Plan(
    "Quantize", {"bits": 8}, (STEP,), (Skipped("head", "too small"),), not_predicted=UNKNOWN
)


def test_layers_come_once_and_in_order():
    steps = (STEP, Step("a", "x", "y"), Step("layers.0", "z", "y"))
    plan = Plan("T", {}, steps, not_predicted=UNKNOWN)
    assert (plan.layers, plan.is_empty) == (("layers.0", "a"), False)
    assert Plan("T", {}, (), not_predicted=UNKNOWN).is_empty


@pytest.mark.parametrize(("given", "missing"), [({}, "speedup"), ({"speedup": "why"}, "shrinkage")])
def test_a_gain_is_predicted_or_its_absence_has_a_reason(given, missing):
    with pytest.raises(SettingError, match=f"either a {missing} or the reason"):
        Plan("T", {}, (STEP,), not_predicted=given)


def test_a_gain_with_a_reason_for_its_absence_is_refused():
    with pytest.raises(SettingError, match="either a speedup or"):
        Plan("T", {}, (STEP,), speedup=Gain(2, 1, 3, basis="measured"), not_predicted=UNKNOWN)


@pytest.mark.parametrize("given", [{}, UNKNOWN])
def test_where_nothing_is_done_that_is_the_reason(given):
    plan = Plan("T", {}, (), not_predicted=given)
    assert plan.not_predicted == dict.fromkeys(UNKNOWN, "nothing changes")


def test_fewer_bytes_are_exactly_so_many_times_smaller():
    gain = Gain.of_bytes(3000, 1200, "counted by hand")
    assert gain.value == gain.low == gain.high == 2.5
    assert gain.basis == "3,000 bytes before, 1,200 after, counted by hand"
    assert Gain.of_bytes(8, 0, "counted").value == 8  # nothing is left


@pytest.mark.parametrize("numbers", [(2, 3, 4), (2, 1, 1.5), (0, 0, 1), (math.nan, 1, 2)])
def test_a_gain_is_positive_and_lies_in_its_interval(numbers):
    with pytest.raises(SettingError):
        Gain(*numbers, basis="guessed")


def test_a_plan_of_another_transform_is_refused():
    with pytest.raises(
        SettingError, match=r"made by Quantize\(bits=8\), not by Quantize\(bits=4\)"
    ):
        PLAN.check_made_by("Quantize", {"bits": 4})
    assert PLAN.check_made_by("Quantize", {"bits": 8}) is None


def test_a_plan_goes_through_json():
    unknown = {"shrinkage": "stays the same"}
    plan = Plan(
        "T", {}, (STEP,), speedup=Gain(2, 1, math.inf, basis="one round"), not_predicted=unknown
    )
    fields = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert fields["speedup"] == {
        "value": 2,
        "low": 1,
        "high": None,
        "coverage": 0.0,
        "n": 0,
        "basis": "one round",
    }
    assert fields["steps"][0]["settings"] == {"bits": 8}


def test_steps_are_grouped_by_what_is_done_and_why():
    steps = [Step(f"h.{n}.{name}", "int8", "large") for n in range(3) for name in ("q", "k")]
    steps[2] = Step("h.1.q", "int4", "large")
    plan = Plan("T", {}, (*steps, Step("h.3.q", "int8", "tied")), not_predicted=UNKNOWN)
    groups = plan.step_groups
    assert [group.layers.name for group in groups] == ["h.{0,2}.q", "h.{0..2}.k", "h.1.q", "h.3.q"]
    assert [(group.what, group.why) for group in groups[2:]] == [
        ("int4", "large"),
        ("int8", "tied"),
    ]
    assert sum(len(group.layers) for group in groups) == len(plan.layers)


def test_settings_of_steps_do_not_keep_them_apart():
    steps = tuple(Step(f"h.{n}", "int8", "large", {"scale": n}) for n in range(3))
    (group,) = Plan("T", {}, steps, not_predicted=UNKNOWN).step_groups
    assert group.layers.paths == ("h.0", "h.1", "h.2")


def test_skipped_layers_are_found_by_their_reason():
    skipped = tuple(Skipped(*each) for each in [("a", "x"), ("b", "y"), ("c", "x"), ("a", "x")])
    plan = Plan("T", {}, (), skipped, not_predicted=UNKNOWN)
    assert plan.skipped_by_reason == {"x": ("a", "c"), "y": ("b",)}


def test_a_plan_shows_itself():
    assert "Plan of Quantize" in shown(PLAN)
    assert "Plan of Quantize" in PLAN._repr_html_()


@dataclass(frozen=True)
class Halve(Transform):
    layer: str = "a"


def test_a_transform_makes_plans_with_its_name_and_settings():
    plan = Halve("b").planned([Step("b", "halved", "why")], not_predicted=UNKNOWN)
    assert (plan.transform, plan.settings, plan.layers) == ("Halve", {"layer": "b"}, ("b",))
    empty = Halve().skipping("too small", Skipped("c", "no weight"))
    assert empty.is_empty
    assert empty.skipped_by_reason == {"too small": ("",), "no weight": ("c",)}


def test_an_empty_plan_gives_a_copy_and_another_transform_refuses_it():
    workload = load_zoo("mlp")
    copy = Halve().apply(workload, Halve().skipping("too small"))
    assert type(copy) is type(workload.model)
    assert copy is not workload.model
    with pytest.raises(SettingError, match=r"by Halve\(layer='b'\), not by Halve\(layer='a'\)"):
        Halve().apply(workload, Halve("b").skipping("too small"))

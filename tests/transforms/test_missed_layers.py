import numpy as np
import pytest

from tinytorch.transforms.remove_layers import (
    choose_layers,
    is_part,
    staying_layers,
    steps_of,
    why_no_stream,
    why_part_kept,
)
from tinytorch.transforms.support.observing import why_kept

COSTS = {"a": 0.3, "b": 0.1, "c": 0.2, "d": 0.4}


class AllButOne:
    """Layers of which one has to stay."""

    def removable_beside(self, gone):
        left = [path for path in COSTS if path not in gone]
        return left if len(left) > 1 else []


class Sums:
    """Outputs that change by the sum of what is gone; `b` and `c` do not go together."""

    def __init__(self, fails=()):
        self.fails = set(fails)

    def without(self, paths):
        reason = "it fails" if self.fails and self.fails <= set(paths) else ""
        return sum(COSTS[path] for path in paths), reason


def names(removed):
    return [path for path, _ in removed]


def test_the_one_that_is_missed_least_goes_first():
    removed = choose_layers(AllButOne(), Sums(), COSTS, count=2)
    assert names(removed) == ["b", "c"]
    assert [change for _, change in removed] == pytest.approx([0.1, 0.3])


def test_what_does_not_go_with_those_before_stays():
    assert names(choose_layers(AllButOne(), Sums({"b", "c"}), COSTS, count=2)) == ["b", "a"]


def test_the_last_one_stays_whatever_is_asked():
    assert names(choose_layers(AllButOne(), Sums(), COSTS, count=9)) == ["b", "c", "a"]


def test_steps_say_what_each_changes_alone_and_together():
    first, second = steps_of([("b", 0.1), ("c", 0.3)], COSTS)
    assert first.why == "without it the outputs change by 10.00%"
    assert second.why == (
        "without it the outputs change by 20.00%, by 30.00% with those removed before"
    )
    assert second.settings == {"order": 1, "change_alone": 0.2, "change_together": 0.3}


def test_layers_that_stay_say_what_they_would_change():
    reasons = {each.layer: each.reason for each in staying_layers(AllButOne(), COSTS, ["b"])}
    assert reasons["a"] == "without it the outputs would change by 30.00%"
    assert set(reasons) == {"a", "c", "d"}
    (last,) = staying_layers(AllButOne(), COSTS, ["a", "b", "c"])
    assert last.reason.endswith("; nothing else of its kind is in its list")
    assert not staying_layers(AllButOne(), {"a.x": 0.1}, ["a"])


def test_parts_are_known_by_their_paths():
    assert is_part("a.b", "a")
    assert is_part("a", "a")
    assert not is_part("ab", "a")
    assert not is_part("a", "a.b")


def test_nothing_but_the_model_is_part_of_a_layer_without_a_name():
    assert is_part("", "")
    assert not is_part("a", "")


def test_a_layer_that_gives_what_it_takes_can_be_left_out():
    assert why_no_stream(np.zeros((2, 3)), np.ones((2, 3))) == ""


@pytest.mark.parametrize(
    ("first", "output", "reason"),
    [
        (None, np.zeros(2), "it takes or gives something else than one tensor"),
        (np.zeros(2), (np.zeros(2),), "it takes or gives something else than one tensor"),
        (np.zeros((2, 3)), np.zeros((2, 4)), "it makes (2, 4) of (2, 3), so others need it"),
        (np.zeros(2), np.zeros(2, "f4"), "it makes float32 of float64, so others need it"),
    ],
)
def test_what_others_need_cannot_be_left_out(first, output, reason):
    assert why_no_stream(first, output) == reason


def test_a_layer_is_kept_with_a_part_of_it():
    modules = ["", "a", "a.x", "ab", "ab.x"]
    assert why_part_kept("a", modules, ()) == ""
    assert why_part_kept("a", modules, ("ab*",)) == ""
    assert why_part_kept("ab", modules, ("ab",)) == why_kept("ab", ("ab",)) != ""
    assert why_part_kept("a", modules, ("*.x",)) == f"'a.x' in it is {why_kept('a.x', ('*.x',))}"

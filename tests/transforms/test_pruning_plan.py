import pytest

from tinytorch.transforms.plan import Skipped
from tinytorch.transforms.prune.layers import Prunable, make_plan


def weight(name, size, zeros=0, **reasons):
    return Prunable(f"{name}.weight", None, size, zeros, (size,), reasons or {name: ""})


def planned(weights, shares=None, *, scope="layer", sparsity=0.5, keep=(), others=()):
    settings = {"sparsity": sparsity, "scope": scope, "keep": keep}
    return make_plan(settings, weights, others, lambda chosen, count: shares)


def test_each_layer_loses_the_share_and_keeps_at_least_one():
    plan = planned([weight("a", 100), weight("b", 3), weight("c", 1)], sparsity=0.9)
    assert {step.layer: step.settings["zeros"] for step in plan.steps} == {"a": 90, "b": 2}
    assert plan.skipped == (Skipped("c", "this share of 1 weights is less than one"),)
    assert any("keeps at least one weight" in note for note in plan.notes)


def test_in_the_model_the_shares_decide():
    plan = planned([weight("a", 60), weight("b", 40)], [50, 0], scope="model")
    assert plan.layers == ("a",)
    assert "more important than those" in plan.skipped[0].reason
    assert plan.notes == ("50 of 100 weights are zero afterwards (50.0%)",)


def test_zeros_that_are_there_already_count():
    plan = planned([weight("a", 100, 30), weight("b", 100, 80)])
    assert [step.layer for step in plan.steps] == ["a"]
    assert plan.steps[0].what == "50 of 100 weights become zero, 30 of them are already"
    assert plan.skipped[0].reason == "80.0% of its weights are zero already"


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_model_that_is_sparse_enough_needs_nothing(scope):
    plan = planned([weight("a", 100, 50), weight("b", 100, 70)], scope=scope)
    assert plan.is_empty
    assert plan.notes == ("60.0% of the 200 weights are zero already",)
    assert plan.not_predicted == {"speedup": "nothing changes", "shrinkage": "nothing changes"}


def test_a_layer_that_loses_nearly_all_is_worth_a_word():
    plan = planned([weight("a", 1000), weight("b", 1000)], [995, 5], scope="model")
    assert "'a' keeps only 5 of 1,000 weights; keep= leaves it alone" in plan.notes
    assert not any("'b'" in note for note in plan.notes)


def test_what_shares_a_weight_with_a_kept_layer_says_so():
    plan = planned([weight("a", 10, a="", b="kept by keep='b'")], keep=("b", "c"))
    assert plan.skipped == (
        Skipped("a", "it shares its weight with 'b', which stays"),
        Skipped("b", "kept by keep='b'"),
    )
    assert "keep='c' matches no layer that can be pruned" in plan.notes
    assert "the model has no weight that can be pruned" in plan.notes


def test_a_shared_weight_is_named_once():
    plan = planned([weight("a", 10, a="", b="")])
    assert [step.layer for step in plan.steps] == ["a"]
    assert plan.steps[0].settings == {"weight": "a.weight", "zeros": 5, "layers": ("a", "b")}
    assert "which a and b share" in plan.steps[0].why


def test_nothing_is_promised_that_zeros_alone_do_not_give():
    plan = planned([weight("a", 10)])
    assert plan.speedup is None
    assert plan.shrinkage is None
    assert "SparseLayers" in plan.not_predicted["shrinkage"]
    assert "dense kernels multiply zeros" in plan.not_predicted["speedup"]

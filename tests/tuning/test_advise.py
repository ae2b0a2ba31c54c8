import re
from dataclasses import replace

import pytest
from example_profiles import empty_profile, example_profile, moving_profile, training_profile
from example_work import Part, linear, machine, on_gpu, work_profile, written_out_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.measure.roofline import amdahl
from tinytorch.transforms.plan import Gain, Plan, Step
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.advise import RULES, advise
from tinytorch.tuning.catalog import CATALOG, find_entries
from tinytorch.tuning.facts import SPREAD, gather_facts

NOT_PREDICTED = {"shrinkage": "the same bytes"}
BUSY = ("the load average is 8.1 on 2 usable cores: the machine is busy",)


def plan_of(gain, *layers):
    steps = tuple(Step(layer, "", "") for layer in layers or ("",))
    unknown = NOT_PREDICTED if gain else NOT_PREDICTED | {"speedup": "nobody knows"}
    return Plan("X", {}, steps, speedup=gain, not_predicted=unknown)


def repeating_profile():
    """Give a profile of a layer that is called twice on the same input."""
    profile = work_profile(linear(4), Part("aten.relu", 2))
    product, relu = profile.operations
    first = replace(product, duration=product.duration / 2, reads=(1, 2))
    recording = replace(profile.recording, operations=(first, first, relu))
    return replace(profile, recording=recording)


def everything():
    """Give profiles in which every rule but that of loading data has something to say."""
    conv = Part(
        "aten.convolution", 9, "contraction", ((1, 3, 8, 8),), (1, 4, 8, 8), (4, 3, 3, 3), 6912
    )
    norm = Part("aten.native_batch_norm", 3, "normalisation")
    odd = Part("custom.op", 9, None)
    item = Part("aten._local_scalar_dense", 1, "movement")
    return [
        work_profile(linear(8), *written_out_attention(), outside_ms=9, disturbances=BUSY),
        work_profile(conv, norm, odd, linear(900, rows=100)),
        work_profile(conv, norm, odd),
        work_profile(linear(8, kind="linear"), Part("relu", 4), framework="core"),
        on_gpu(linear(6), item, Part("aten.relu", 2)),
        work_profile(linear(8), ceilings=None),
        work_profile(linear(8, path="model"), kinds={"": "Generation", "model": "Decoder"}),
        repeating_profile(),
        example_profile(),
        training_profile(),
        moving_profile(),
        empty_profile(),
    ]


def test_every_rule_speaks_somewhere_under_its_own_name():
    spoken = {each.rule for profile in everything() for each in advise(profile)}
    assert spoken == set(RULES)


@pytest.mark.parametrize("profile", everything())
def test_every_advice_has_evidence_with_numbers_and_a_prediction_or_a_reason(profile):
    for each in advise(profile):
        assert each.evidence
        assert all(re.search(r"\d", sentence) for sentence in each.evidence)
        assert (each.predicted is None) == bool(each.not_predicted)
        assert each.entry == "" or each.risk
        assert Advice.from_dict(each.to_dict()) == each


@pytest.mark.parametrize("profile", everything())
def test_nothing_is_predicted_beyond_amdahl(profile):
    for each in advise(profile):
        if each.predicted is not None:
            assert 0 < each.predicted.low <= each.predicted.value <= each.predicted.high
            if each.entry != "compiled":  # which may make products faster, too
                assert each.predicted.high <= SPREAD * amdahl(each.share) * (1 + 1e-6)
            assert each.predicted.basis


@pytest.mark.parametrize("profile", everything())
def test_only_what_fits_the_framework_and_the_device_is_named(profile):
    known = {each.name: each for each in CATALOG}
    for each in advise(profile):
        if each.entry:
            assert profile.framework in known[each.entry].frameworks
            assert profile.device.partition(":")[0] in known[each.entry].devices


PARTS = st.one_of(
    st.builds(linear, st.floats(0.01, 100), rows=st.integers(1, 200), recorded_ms=st.floats(0, 50)),
    st.builds(Part, st.sampled_from(["aten.relu", "aten._softmax"]), st.floats(0.01, 100)),
    st.builds(Part, st.just("odd.op"), st.floats(0.01, 100), st.none()),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=6), st.floats(0, 100), st.floats(1e7, 1e13))
def test_advice_stays_within_amdahl_whatever_the_profile(parts, outside_ms, bandwidth):
    profile = work_profile(*parts, outside_ms=outside_ms, ceilings=machine(bandwidth=bandwidth))
    for each in advise(profile):
        if each.predicted is not None:
            share = 1.0 if each.entry == "compiled" else min(1.0, each.share)
            most = SPREAD * min(amdahl(share), 1e6)
            assert 1.0 <= each.predicted.value <= each.predicted.high <= most * (1 + 1e-6)


def test_predictions_come_first_by_their_value():
    plans = {"threads": (plan_of(Gain(1.2, 1.1, 1.3, basis="measured")),)}
    found = advise(work_profile(linear(6), Part("aten.add", 2), Part("aten.mul", 2)), plans=plans)
    assert "threads" in [each.entry for each in found]
    known = [each.predicted for each in found if each.predicted]
    assert [bool(x.predicted) for x in found[: len(known)]] == [True] * len(known)
    assert not any(each.predicted for each in found[len(known) :])
    assert known == sorted(known, key=lambda x: (-x.value, -x.low))
    shares = [-1 if x.share is None else x.share for x in found[len(known) :]]
    assert shares == sorted(shares, reverse=True)


def test_only_given_entries_are_advised_beside_what_no_transform_does():
    profile = work_profile(linear(8), outside_ms=9, framework="core")
    found = advise(profile, entries=find_entries(["int8-weights"]))
    assert {each.entry for each in found} == {"", "int8-weights"}


def test_an_entry_whose_plan_is_empty_is_not_advised():
    profile = work_profile(linear(8), framework="core")
    assert "int8-weights" in {each.entry for each in advise(profile)}
    plans = {"int8-weights": (Plan("X", {}, ()),)}
    assert "int8-weights" not in {each.entry for each in advise(profile, plans=plans)}


def test_what_a_plan_has_measured_is_the_prediction():
    profile = work_profile(linear(8, kind="linear"), framework="core", outside_ms=2)
    plans = {"compiled-kernels": (plan_of(Gain(2.0, 1.5, 2.5, basis="as timed"), "layers.0"),)}
    (advice,) = (x for x in advise(profile, plans=plans) if x.entry == "compiled-kernels")
    assert (advice.predicted.value, advice.predicted.low, advice.predicted.high) == (2, 1.5, 2.5)
    assert "as timed" in advice.predicted.basis
    assert advice.not_predicted == ""


def test_what_a_plan_has_measured_is_cut_to_what_amdahl_allows():
    profile = work_profile(linear(5, kind="linear"), framework="core", outside_ms=5)
    plans = {"compiled-kernels": (plan_of(Gain(3.0, 1.5, 9.0, basis="as timed"), "layers.0"),)}
    (advice,) = (x for x in advise(profile, plans=plans) if x.entry == "compiled-kernels")
    assert advice.predicted.value == advice.predicted.high == pytest.approx(2.0)
    assert advice.predicted.low == 1.5
    assert "Amdahl" in advice.predicted.basis


def test_the_transforms_of_an_entry_are_taken_together():
    profile = work_profile(linear(8, kind="linear"), framework="core")
    plans = {"pruned-sparse": (plan_of(None), plan_of(Gain(1.5, 1.2, 2.0, basis="timed")))}
    (advice,) = (x for x in advise(profile, plans=plans) if x.entry == "pruned-sparse")
    assert advice.rule == "planned"
    assert advice.predicted.value == 1.5
    assert "evaluate" in advice.risk


def test_a_plan_without_a_prediction_leaves_the_rules_own():
    profile = work_profile(linear(8), framework="core")
    plain = {x.entry: x.predicted for x in advise(profile) if x.predicted}
    plans = {"int8-weights": (plan_of(None, "layers.0"),)}
    again = {x.entry: x.predicted for x in advise(profile, plans=plans) if x.predicted}
    assert again["int8-weights"] == plain["int8-weights"]


def test_rules_are_functions_of_a_profile_and_its_facts():
    profile = work_profile(linear(8))
    facts = gather_facts(profile)
    assert all(isinstance(list(rule(profile, facts)), list) for rule in RULES.values())

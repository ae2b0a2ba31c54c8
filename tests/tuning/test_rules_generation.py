import pytest
from example_work import Part, linear, on_gpu, work_profile

from tinytorch.tuning.facts import SPREAD, gather_facts
from tinytorch.tuning.rules import token_by_token

KINDS = {"": "Generation", "model": "Decoder"}


def steps(count=4):
    parts = (linear(1.5, path="model"), Part("aten.relu", 0.5, path="model"))
    return [each for _ in range(count) for each in parts]


def found(profile):
    return list(token_by_token(profile, gather_facts(profile)))


def test_a_text_is_advised_to_be_written_with_a_static_cache():
    (advice,) = found(work_profile(*steps(), outside_ms=8, kinds=KINDS))
    assert advice.entry == "static-generation"
    assert advice.evidence[0].startswith("8 decoder steps per call, 2")
    assert [each[:3] for each in advice.evidence[1:]] == ["50%", "12%"]
    assert advice.predicted is None
    assert advice.not_predicted
    assert advice.share == pytest.approx(0.625, abs=0.01)


def test_on_a_device_what_waits_can_be_gone():
    (advice,) = found(on_gpu(*steps(), idle=0.5, kinds=KINDS))
    assert "50%" in advice.evidence[1]
    assert "host-bound" in advice.evidence[1]
    assert advice.predicted.value == pytest.approx(2.0)
    assert advice.predicted.low == pytest.approx(1 / SPREAD)
    assert advice.predicted.high == pytest.approx(SPREAD / 0.375)
    assert advice.not_predicted == ""


@pytest.mark.parametrize("kinds", [{"": "Net", "model": "Decoder"}, {}])
def test_other_calls_write_no_text(kinds):
    assert found(work_profile(*steps(), outside_ms=8, kinds=kinds)) == []


def test_a_decoder_that_is_called_past_its_wrapper_has_no_steps_to_count():
    parts = [linear(1.5, path="model.model"), Part("aten.relu", 0.5, path="model.model")]
    kinds = {**KINDS, "model.model": "Decoder", "model": "InferenceModel"}
    assert found(work_profile(*parts, outside_ms=8, kinds=kinds)) == []


def test_a_generation_without_a_decoder_inside_has_no_steps():
    assert found(work_profile(linear(4), kinds={"": "Generation"})) == []

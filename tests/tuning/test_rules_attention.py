import pytest
from example_work import Part, linear, work_profile
from example_work import written_out_attention as written

from tinytorch.measure.roofline import amdahl
from tinytorch.tuning.facts import SPREAD, gather_facts
from tinytorch.tuning.rules import (
    find_attention,
    quadratic_attention,
    written_out_attention,
)


def found(rule, profile):
    return list(rule(profile, gather_facts(profile)))


def fused(ms=2.0, *, length=100, keys=None, heads=2, width=10):
    keys = length if keys is None else keys
    query, key = (1, heads, length, width), (1, heads, keys, width)
    macs = 2 * heads * length * keys * width
    kind = "aten._scaled_dot_product_flash_attention_for_cpu"
    return Part(kind, ms, "contraction", (query, key, key), query, macs=macs)


def test_a_softmax_between_two_products_is_attention():
    (each,) = find_attention(gather_facts(work_profile(linear(6), *written(), linear(2))).work)
    assert len(each.work) == 4
    assert (each.queries, each.keys) == (100, 100)
    assert each.score_bytes == 4 * 2 * 100 * 100
    assert each.is_written_out


def test_what_one_kernel_moves_is_all_but_the_scores():
    (each,) = find_attention(gather_facts(work_profile(*written())).work)
    assert each.fused_bytes == 4 * 4 * (2 * 100 * 10)


def test_a_softmax_at_the_end_is_no_attention():
    softmax = Part("aten._softmax", 1, "reduction", ((4, 10),), (4, 10))
    assert not find_attention(gather_facts(work_profile(linear(6), softmax)).work)
    assert not find_attention(gather_facts(work_profile(linear(6), softmax, linear(2))).work)


def test_written_out_attention_is_advised_in_one_kernel():
    profile = work_profile(linear(6), *written(ms=1.0))
    (advice,) = found(written_out_attention, profile)
    assert advice.entry == "fused-attention"
    assert advice.share == pytest.approx(0.4)
    # Two products as they are, and one pass instead of two between them.
    assert advice.predicted.value == pytest.approx(1 / 0.9)
    # 800 kFLOP take 0.8 ms, the 32 kB of queries, keys, values and outputs less.
    assert advice.predicted.high == pytest.approx(SPREAD * amdahl(0.4, 4 / 0.8))
    assert advice.predicted.low < 1.0
    assert "length 100" in advice.evidence[1]


def test_without_ceilings_the_gain_of_a_kernel_is_not_predicted():
    (advice,) = found(written_out_attention, work_profile(*written(), ceilings=None))
    assert advice.predicted is None
    assert "ceilings" in advice.not_predicted


def test_fused_attention_needs_no_advice():
    assert not found(written_out_attention, work_profile(linear(6), fused()))


def test_little_attention_needs_no_advice():
    assert not found(written_out_attention, work_profile(linear(600), *written()))


def test_attention_overtakes_other_products_in_proportion_to_the_length():
    # 4 M in attention at 100 tokens, 40 M elsewhere: as many at 1,000 tokens.
    other = linear(6, rows=100, inside=400, outside=100)
    profile = work_profile(other, *written(width=100))
    (advice,) = found(quadratic_attention, profile)
    assert "length 100" in advice.title
    other = linear(6, rows=100, inside=400, outside=1000)
    (advice,) = found(quadratic_attention, work_profile(other, *written(width=100)))
    assert "1,000" in advice.title
    assert advice.evidence[2].startswith("10x")
    assert advice.evidence[3].startswith("0.08 MB")
    assert advice.entry == ""


def test_fused_attention_grows_as_well():
    profile = work_profile(linear(6, rows=100, inside=400, outside=1000), fused(width=100))
    (advice,) = found(quadratic_attention, profile)
    assert "1,000" in advice.title
    assert advice.evidence[3].startswith("0 bytes")


def test_one_token_after_the_other_does_not_grow_with_the_square():
    assert not found(quadratic_attention, work_profile(linear(6), fused(length=1, keys=100)))


def test_a_length_far_away_is_nobodys_worry():
    assert not found(quadratic_attention, work_profile(linear(6, rows=10_000), fused(length=10)))


def test_models_without_attention_are_silent():
    assert not found(quadratic_attention, work_profile(linear(6)))

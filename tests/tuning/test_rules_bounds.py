import pytest
from example_work import Part, linear, machine, work_profile
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.measure.roofline import amdahl
from tinytorch.tuning.facts import SPREAD, Change, gain_of, gather_facts, missing_rate, roof_of

SHARES = st.floats(0, 1)


def only_work(part, **changes):
    profile = work_profile(part, **changes)
    return gather_facts(profile).work[0], roof_of(profile)


def test_a_product_that_reads_more_than_it_computes_is_memory_bound():
    # 2 MFLOP and 4 MB: 2 ms of computing, 4 ms of moving
    work, roof = only_work(linear(8))
    assert roof.is_memory_bound(work) is True
    assert roof.seconds(work) == pytest.approx(4.008e-3)
    assert roof.seconds(work, moved=0) == pytest.approx(2e-3)
    assert roof.seconds(work, moved=0, dtype="int8") == pytest.approx(0.5e-3)


def test_many_rows_make_it_compute_bound():
    work, roof = only_work(linear(8, rows=100))
    assert roof.is_memory_bound(work) is False


def test_a_rate_that_was_not_measured_bounds_nothing():
    work, roof = only_work(linear(8), ceilings=machine({"float32": 1e9}))
    assert roof.seconds(work, dtype="int8") is None
    assert only_work(linear(8), ceilings=None)[1] is None


def test_work_without_products_is_bound_by_its_bytes():
    work, roof = only_work(Part("aten.relu", 1, inputs=((1, 1000),), output=(1, 1000)))
    assert roof.seconds(work) == pytest.approx(8e-6)


def test_why_a_rate_is_missing_is_told():
    profile = work_profile(
        linear(8), ceilings=machine({"float32": 1e9}, missing={"int8 rate": "no torch"})
    )
    assert missing_rate(profile, "float32") == ""
    assert "no torch" in missing_rate(profile, "int8")
    assert "ceilings" in missing_rate(work_profile(linear(8), ceilings=None), "int8")


def test_half_the_roof_is_half_the_time_and_at_best_the_roof():
    work, _ = only_work(linear(8))
    change = Change.under(work, 4e-3, 2e-3)
    assert change.left == pytest.approx(0.5)
    assert change.least == pytest.approx(2 / 8)


def test_work_that_beats_its_roof_keeps_its_lead():
    work, _ = only_work(linear(2))
    change = Change.under(work, 4e-3, 2e-3)
    assert (change.left, change.least) == (0.5, 0.5)


def test_a_higher_roof_changes_nothing_but_the_best_case():
    work, _ = only_work(linear(8))
    change = Change.under(work, 2e-3, 4e-3)
    assert (change.left, change.least) == (1.0, 0.5)


def test_what_is_not_known_changes_nothing():
    work, _ = only_work(linear(8))
    assert Change.under(work, None, 1.0) == Change(work, 1.0, 1.0)
    assert Change.under(work, 1.0, None) == Change(work, 1.0, 1.0)


@given(st.lists(SHARES, min_size=1, max_size=6), SHARES, SHARES, SHARES)
def test_a_gain_never_exceeds_amdahl(times, left, least, outside):
    parts = [linear(0.01 + each) for each in times]
    facts = gather_facts(work_profile(*parts, outside_ms=outside))
    changes = [Change(each, left, min(left, least)) for each in facts.work]
    gain = gain_of(changes, "test", vanishing=facts.outside_share, left=left)
    total = min(1.0, sum(each.share for each in facts.work) + facts.outside_share)
    assert gain.low == 1 / SPREAD
    assert 1.0 <= gain.value <= gain.high * (1 + 1e-9)
    assert gain.high <= SPREAD * max(amdahl(total), 1.0) * (1 + 1e-6)


def test_nothing_saved_is_no_gain():
    gain = gain_of((), "test")
    assert (gain.value, gain.low, gain.high) == (1.0, 1 / SPREAD, SPREAD)


def test_what_may_take_longer_can_make_the_call_slower():
    work, _ = only_work(linear(8), outside_ms=8)
    assert gain_of([Change(work, 1.0, 0.5, 2.0)], "test").low == pytest.approx(1 / 1.5 / SPREAD)


def test_python_around_an_operation_is_saved_only_at_best():
    # A layer of 8 ms whose operation takes 2 ms, in a call of 10 ms.
    work, _ = only_work(linear(8, recorded_ms=2), outside_ms=2)
    gain = gain_of([Change(work, 0.0, 0.0)], "test")
    assert gain.value == pytest.approx(1 / 0.8)
    assert gain.high == pytest.approx(SPREAD / 0.2)

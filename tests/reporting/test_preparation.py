import pytest
from example_comparisons import comparison

from tinytorch.models.workload import FIRST_CALL, Preparation
from tinytorch.reporting.comparison import cache_line, preparation_lines

COMPILED = Preparation("compiled", 12.0, 3 << 20)
CAPTURED = Preparation("captured", 0.5)
FIRST = Preparation(FIRST_CALL, 7.8)


def lines(ratio, *sides):
    return list(preparation_lines(comparison(ratio, preparations=sides)))


def test_nothing_done_is_nothing_said():
    assert lines(0.5, (), ()) == []


def test_each_side_has_a_line_and_the_candidate_its_break_even():
    first, second, pays = lines(0.5, (FIRST,), (COMPILED, CAPTURED))
    assert first == (
        "baseline: first call took about 7.80 s longer than the others: not part of the times"
    )
    assert second == (
        "candidate: compiled once in 12.0 s, 3 MiB stay taken; captured once in 500 ms: "
        "not part of the times"
    )
    assert pays.startswith("candidate has made up for that after 25.0k calls (24.")


@pytest.mark.parametrize(("ratio", "sides"), [(0.5, ((COMPILED,), ())), (1.5, ((), (COMPILED,)))])
def test_what_does_not_pay_has_no_break_even(ratio, sides):
    (only,) = lines(ratio, *sides)
    assert "not part of the times" in only


def test_only_cold_caches_are_worth_a_word():
    assert cache_line(comparison()) == ""
    assert cache_line(comparison(cache="cold")).startswith("cold caches")

import gc
from itertools import pairwise

import numpy as np
import pytest

from tinytorch.measure import interleaving
from tinytorch.measure.interleaving import balanced_pairs, interleave


def rounds_of(turns):
    found = {}
    for number, side in turns:
        found.setdefault(number, []).append(side)
    return list(found.values())


def test_every_side_has_one_turn_a_round_in_all_orders():
    rounds = rounds_of(interleave("abc", rng=np.random.default_rng(1), at_least=60))
    assert len(rounds) == 60
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(map(tuple, rounds))) == 6


def test_the_same_seed_gives_the_same_order():
    first, again = (
        list(interleave(range(5), rng=np.random.default_rng(3), at_least=4)) for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize(("budget_s", "rounds"), [(0.0, 3), (3.5, 4), (100.0, 8)])
def test_rounds_beyond_the_least_begin_while_the_budget_lasts(monkeypatch, budget_s, rounds):
    now = [0.0]
    monkeypatch.setattr(interleaving, "perf_counter", lambda: now[0])
    rng = np.random.default_rng(0)
    seen = set()
    for number, _ in interleave("ab", rng=rng, at_least=3, at_most=8, budget_s=budget_s):
        seen.add(number)
        now[0] = number + 1.0
    assert len(seen) == rounds


def test_a_side_that_is_removed_has_no_further_turn():
    sides, taken = {"a": 0, "b": 0, "c": 0}, []
    for number, side in interleave(sides, rng=np.random.default_rng(0), at_least=10):
        taken.append((number, side))
        if number == 4:
            sides.pop("b", None)
    assert all(side != "b" for number, side in taken if number > 4)
    assert sum(side == "a" for _, side in taken) == sum(side == "c" for _, side in taken) == 10


def test_the_collector_is_off_meanwhile_and_on_again_after_an_exception():
    seen = []

    def fails():
        for _ in interleave("ab", rng=np.random.default_rng(0), at_least=5):
            seen.append(gc.isenabled())
            if len(seen) == 3:
                raise KeyError("enough")

    with pytest.raises(KeyError):
        fails()
    assert (seen, gc.isenabled()) == ([False] * 3, True)


def test_pairs_come_as_abba():
    orders = list(balanced_pairs(101, np.random.default_rng(2)))
    assert set(orders) == {(0, 1), (1, 0)}
    mirrored = [second == first[::-1] for first, second in pairwise(orders)]
    assert all(mirrored[::2])
    assert not all(mirrored[1::2])

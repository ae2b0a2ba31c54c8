"""Who holds the others up is named, with its cause; nobody is where nobody does."""

import numpy as np
import pytest
from parts import require_part
from scripted_ranks import scripted_run

from tinytorch.scale.ranks_result import RanksProfile, profile_of
from tinytorch.scale.stragglers import FALSE_ALARMS, find_slow_links, find_stragglers

binom = require_part("scipy.stats").binom
STEPS, MS, TRIALS = 100, 1000.0, 60


def noisy(rng, *, mean=50 * MS, noise=0.04, count=STEPS):
    """Work with noise of its own in each step, and now and then a burst of some steps."""
    bursts = np.repeat(rng.random(count // 4) < 0.1, 4) * 0.3
    return mean * (1 + noise * rng.standard_normal(count) + bursts)


def steps_of(rng, ranks, *, slow=0.0, part="compute"):
    parts = {}
    for rank in range(ranks):
        each = {name: np.zeros(STEPS) for name in ("compute", "hidden", "input", "host")}
        each["compute"] = noisy(rng) / 1e6
        if rank == 1:
            each[part] = each[part] + slow * 0.05
        parts[rank] = each
    return parts


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_false_alarms_are_as_rare_as_stated(ranks):
    rng = np.random.default_rng(ranks)
    alarms = sum(bool(find_stragglers(steps_of(rng, ranks), 0.05)) for _ in range(TRIALS))
    # The 99% quantile of the number of alarms if they came as often as is allowed.
    assert alarms <= binom.ppf(0.99, TRIALS, FALSE_ALARMS)


@pytest.mark.parametrize("part", ["compute", "input", "host"])
def test_a_rank_slowed_by_a_tenth_is_named_with_its_cause(part):
    rng = np.random.default_rng(7)
    named = [find_stragglers(steps_of(rng, 2, slow=0.1, part=part), 0.05) for _ in range(50)]
    hits = [each for each in named if [(x.rank, x.cause) for x in each] == [(1, part)]]
    assert len(hits) >= 45
    assert 0.08 < np.median([each[0].excess.value for each in hits]) < 0.12


def test_a_slow_layer_is_named():
    rng = np.random.default_rng(1)
    parts = steps_of(rng, 2, slow=0.4)
    layers = {
        rank: {path: np.full(STEPS, 0.001) for path in ("first", "second", "third")}
        for rank in parts
    }
    layers[1]["second"] = np.full(STEPS, 0.02)
    (found,) = find_stragglers(parts, 0.05, layers=layers)
    assert (found.cause, found.subject) == ("compute", "second")


def test_a_slow_link_is_named_where_transfers_are_waited_for(rng):
    rates = {(0, 1): 1e9 * np.exp(0.2 * rng.standard_normal(12)), (1, 0): np.full(12, 1e7)}
    (found,) = find_slow_links(rates, 0.5)
    assert (found.cause, found.subject) == ("link", "1>0")
    assert 0.4 < found.excess.value <= 0.5
    assert find_slow_links(rates, 0.001) == []
    assert find_slow_links(dict.fromkeys(rates, rates[0, 1]), 0.5) == []


# ---------------------------------------------------------------- scripted runs, as a whole


def test_the_what_if_holds_the_gain_of_removing_the_cause():
    covered = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        quick = {rank: noisy(rng) for rank in (0, 1)}
        slow = {0: quick[0], 1: 1.25 * noisy(rng)}
        with_it, without_it = profile_of(scripted_run(slow)), profile_of(scripted_run(quick))
        (found,) = with_it.what_ifs
        gain = sum(with_it.ranks[0].step_s) / sum(without_it.ranks[0].step_s)
        low, high = found.speedup
        # The gain is that of another draw of noise, which moves it by about a percent itself.
        covered += low - 0.01 <= gain <= high + 0.01
    assert covered >= 6


def test_the_critical_path_runs_through_the_slow_rank(rng):
    work = {0: noisy(rng), 1: 1.5 * noisy(rng), 2: noisy(rng)}
    found = profile_of(scripted_run(work))
    assert (found.path[0].rank, found.path[0].part) == (1, "compute")
    assert sum(each.share for each in found.path) == pytest.approx(1, abs=0.01)
    assert "replay-differs" not in {each.code for each in found.notes}
    assert [each.rank for each in found.stragglers] == [1]


def test_a_rank_that_died_leaves_what_it_wrote(rng):
    records = scripted_run({0: noisy(rng), 1: noisy(rng)})
    del records[1].steps[40:]
    records[1].end = ""
    found = profile_of(records)
    assert found.steps == 40
    assert {each.code for each in found.notes} >= {"rank-died"}
    assert [each.subject for each in found.notes if each.code == "rank-died"] == ["rank 1"]


def test_a_rank_without_a_file_is_missing(rng):
    records = scripted_run({0: noisy(rng), 1: noisy(rng)})
    found = profile_of(records[:1])
    assert found.missing == (1,)
    assert found.notes[0].code == "rank-missing"


def test_a_result_is_read_from_its_json(rng):
    found = profile_of(scripted_run({0: noisy(rng), 1: 1.5 * noisy(rng)}))
    again = RanksProfile.from_dict(found.to_dict())
    assert again == found
    assert again.stragglers

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_sides import ScriptedSide, ToldTime, use_told_time

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.comparison.resources import Resources
from tinytorch.comparison.sequential import Rule, time_until_known
from tinytorch.errors import Failure, RecordError
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER, Estimate, time_verdict
from tinytorch.measure.interleaving import Pace, Round
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import Preparation

PACE = Pace(loops=(3, 3), pairs=2, calls_before=1, round_s=0.02, call_s=(1e-3, 2e-3))


def comparison(rounds=None, **settings):
    rounds = rounds or [Round((1e-3, 1.1e-3), (2e-3, 2.2e-3), displaced=1)] * 9
    fields = {
        "baseline_name": "baseline",
        "candidate_name": "candidate",
        "rounds": tuple(rounds),
        "rule": Rule(),
        "floor": 0.005,
        "alpha": 0.05,
        "pace": PACE,
        "clock": "wall",
        "seconds_used": 1.5,
    }
    return Comparison(**fields | settings)


def full():
    """Give a comparison with something in every field."""
    rng = np.random.default_rng(0)
    outputs = (rng.standard_normal((4, 3)), rng.standard_normal((4, 3)))
    return comparison(
        notes=("a note",),
        accuracy=compare_accuracy(np.ones(50), np.ones(50)),
        outputs=compare_outputs(outputs[:1], outputs[1:]),
        resources=(
            Resources(100, 200, None, 300, 8, {"device_peak_bytes": "the model runs on a CPU"}),
            Resources(50, 100, None, 150, 8),
        ),
        calls=(Samples("baseline", (1e-3, 2e-3)), Samples("candidate", (2e-3, 3e-3))),
        energy=(Samples("baseline", (1.0,), unit="J"), Samples("candidate", (2.0,), unit="J")),
        not_measured={"something": Failure("a reason", "a-code", "candidate")},
        environment={"python": "3.11", "cores": 2},
    )


# ---------------------------------------------------------------- verdicts

RATIOS = (
    st.tuples(*[st.floats(0.2, 5.0)] * 3)
    .map(sorted)
    .map(lambda each: Estimate(each[1], each[0], each[2]))
)
FLOORS = st.sampled_from([0.0, 0.005, 0.01, 0.1])
BANDS = st.sampled_from([0.001, 0.01, 0.5])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.006, 1.02, SLOWER),
        (1.004, 1.02, INCONCLUSIVE),
        (0.9, 0.994, FASTER),
        (0.9, 0.996, INCONCLUSIVE),
        (0.995, 1.004, SAME),
        (1 / 1.01, 1.01, SAME),
        (0.98, 1.004, INCONCLUSIVE),
        (0.0, math.inf, INCONCLUSIVE),
        (1.0055, 1.009, SLOWER),  # beyond the floor comes before inside of the band
    ],
)
def test_an_interval_has_its_verdict(low, high, verdict):
    ratio = Estimate(min(max(1.0, low), high), low, high)
    assert time_verdict(ratio, floor=0.005, band=0.01) == verdict


@given(RATIOS, FLOORS, BANDS)
def test_a_difference_is_claimed_only_beyond_the_floor(ratio, floor, band):
    verdict = time_verdict(ratio, floor=floor, band=band)
    if verdict == SLOWER:
        assert ratio.low > 1 + floor
    elif verdict == FASTER:
        assert ratio.high < 1 / (1 + floor)
    elif verdict == SAME:
        assert 1 / (1 + band) <= ratio.low <= ratio.high <= 1 + band


@given(RATIOS, FLOORS, BANDS)
def test_swapping_the_sides_swaps_the_verdict(ratio, floor, band):
    swapped = Estimate(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    # An end that lies on a limit may fall on either side of it when it is turned over.
    ends = [ratio.low, ratio.high, 1 / ratio.low, 1 / ratio.high]
    limits = [1 + floor, 1 + band]
    if min(abs(end - limit) for end in ends for limit in limits) > 1e-9:
        mirrored = {FASTER: SLOWER, SLOWER: FASTER}
        verdict = time_verdict(ratio, floor=floor, band=band)
        assert time_verdict(swapped, floor=floor, band=band) == mirrored.get(verdict, verdict)


def test_twice_the_time_is_slower_and_half_the_speed():
    found = comparison()
    assert found.verdict == SLOWER
    assert found.time_ratio == pytest.approx(2)
    assert found.speedup == pytest.approx(0.5)
    assert found.time_ratio_low < 2 < found.time_ratio_high
    assert found.speedup_low == 1 / found.time_ratio_high
    assert found.speedup_high == 1 / found.time_ratio_low
    assert (found.speedup_interval.low, found.speedup_interval.coverage) == (
        found.speedup_low,
        0.95,
    )


def test_rounds_are_the_unit_and_turns_are_counted():
    found = comparison()
    assert (found.n, found.pairs) == (9, 18)
    assert found.displaced_share == 9 / 36
    assert found.baseline.values == (1e-3, 1.1e-3) * 9
    assert found.candidate.loops == 3


# ---------------------------------------------------------------- rare slow calls


def spiky_rounds(rng, *, spikes_of=("candidate",), pairs=5, rounds=9, factor=20.0, every=7):
    """Give rounds of equal times, but that every so many turns of some sides take far longer."""
    turn = 0
    made = []
    for _ in range(rounds):
        sides = {"baseline": [], "candidate": []}
        for _ in range(pairs):
            turn += 1
            for position, (name, values) in enumerate(sides.items()):
                is_spike = name in spikes_of and (turn + 3 * position) % every == 0
                values.append(1e-3 * (factor if is_spike else 1) * rng.normal(1, 0.001))
        made.append(Round(tuple(sides["baseline"]), tuple(sides["candidate"])))
    return made


@pytest.mark.parametrize("pairs", [3, 4, 5, 13, 50])
def test_slow_calls_of_one_side_alone_are_no_same(rng, pairs):
    for name in ("candidate", "baseline"):
        found = comparison(spiky_rounds(rng, spikes_of=(name,), pairs=pairs))
        assert time_verdict(found.ratio, floor=found.floor, band=0.01) == SAME
        assert found.verdict == INCONCLUSIVE
        assert "rare slow calls" in found.contradiction


@pytest.mark.parametrize("pairs", [5, 13, 50])
def test_slow_calls_of_both_sides_do_not_cost_the_verdict(rng, pairs):
    found = comparison(spiky_rounds(rng, spikes_of=("baseline", "candidate"), pairs=pairs))
    assert (found.verdict, found.contradiction) == (SAME, "")


def test_one_slow_turn_proves_nothing(rng):
    rounds = spiky_rounds(rng, spikes_of=())
    stalled = replace(rounds[4], candidate=(50e-3, *rounds[4].candidate[1:]))
    found = comparison([*rounds[:4], stalled, *rounds[5:]])
    assert found.verdict == SAME


def test_faster_typical_calls_that_are_slower_on_average_are_not_faster(rng):
    rounds = [
        Round(each.baseline, tuple(0.5 * value for value in each.candidate))
        for each in spiky_rounds(rng, factor=40.0)
    ]
    assert comparison(rounds).verdict == INCONCLUSIVE
    # Where the average agrees, slow calls do not matter.
    few = [
        Round(each.baseline, tuple(0.5 * value for value in each.candidate))
        for each in spiky_rounds(rng, factor=3.0)
    ]
    assert comparison(few).verdict == FASTER


@pytest.mark.parametrize("call_ms", [0.05, 0.2, 0.5, 1.0, 2.0])
def test_every_seventh_call_twenty_times_longer_is_never_the_same(monkeypatch, call_ms):
    judged = set()
    for seed in range(5):
        clock, rng = ToldTime(), np.random.default_rng(seed)
        use_told_time(monkeypatch, clock)
        calls = [seed]

        def steady(rng=rng):
            return call_ms * 1e-3 * rng.normal(1, 0.003)

        def bimodal(rng=rng, calls=calls):
            calls[0] += 1
            return steady(rng) * (20 if calls[0] % 7 == 0 else 1)

        sides = (
            ScriptedSide("baseline", steady, clock=clock),
            ScriptedSide("candidate", bimodal, clock=clock),
        )
        timed = time_until_known(
            *sides,
            Rule(),
            is_known=lambda ratio: time_verdict(ratio, floor=0.005, band=0.01) != INCONCLUSIVE,
            rng=rng,
        )
        judged.add(comparison(timed.rounds, alpha=timed.alpha).verdict)
    assert judged <= {INCONCLUSIVE, SLOWER}


# ---------------------------------------------------------------- beside time


def test_throughput_is_examples_over_median_time():
    first, second = full().throughputs
    assert first == pytest.approx(8 / 1.05e-3)
    assert second == pytest.approx(8 / 2.1e-3)
    assert comparison().throughputs is None
    unknown = (Resources(1, 1, None, 1, None), Resources(1, 1, None, 1, 8))
    assert comparison(resources=unknown).throughputs is None


@pytest.mark.parametrize(
    ("scores", "expected"), [(np.ones(500), True), (np.zeros(500), False), (np.ones(3), None)]
)
def test_accuracy_is_known_only_where_it_was_shown(scores, expected):
    varied = np.resize([1.0, 1.0, 0.0], len(scores)) * scores
    accuracy = compare_accuracy(np.resize([1.0, 1.0, 0.0], len(scores)), varied)
    assert comparison(accuracy=accuracy).is_accurate is expected
    assert comparison().is_accurate is None


# ---------------------------------------------------------------- showing and keeping


def test_it_says_itself_in_one_line():
    text = str(comparison())
    assert text.startswith("candidate against baseline: slower, 2.0000 of its time (")
    assert "n=9" in text


def test_other_names_and_more_notes_make_another_comparison():
    named = full().named("before", "after").with_notes("more", "and more")
    assert (named.baseline_name, named.candidate_name) == ("before", "after")
    assert named.notes == ("a note", "more", "and more")
    assert named.baseline.name == "before"
    assert full().notes == ("a note",)


@pytest.mark.parametrize("made", [comparison(), full()], ids=["time alone", "everything"])
def test_a_comparison_survives_strict_json(made):
    text = json.dumps(made.to_dict(), allow_nan=False)
    again = Comparison.from_dict(json.loads(text))
    assert again == made
    assert (again.verdict, again.ratio) == (made.verdict, made.ratio)


def test_conclusions_are_there_for_those_who_read_only_these():
    fields = comparison().to_dict()
    assert fields["verdict"] == SLOWER
    assert fields["time_ratio"] == pytest.approx(2)
    assert fields["n"] == 9


def test_open_ends_survive_strict_json_as_none():
    made = comparison([Round((1.0,), (2.0,))] * 3)
    assert (made.time_ratio_low, made.time_ratio_high) == (0.0, math.inf)
    assert made.verdict == INCONCLUSIVE
    fields = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert fields["time_ratio_high"] is None
    assert fields["speedup_high"] is None
    assert Comparison.from_dict(fields) == made


def test_a_verdict_in_a_file_is_not_believed():
    fields = comparison().to_dict() | {"verdict": FASTER, "time_ratio": 0.1}
    assert Comparison.from_dict(fields).verdict == SLOWER


@pytest.mark.parametrize("schema", [0, 2, None, "1"])
def test_another_schema_is_refused(schema):
    with pytest.raises(RecordError, match=rf"schema: expected 1.*got {schema!r}"):
        Comparison.from_dict(comparison().to_dict() | {"schema": schema})


# ---------------------------------------------------------------- what was done once

ONCE = ((), (Preparation("compiled", 12.0, 3 << 20), Preparation("captured", 0.5)))


def faster(ratio=0.5, **settings):
    rounds = [
        Round((1e-3, 1e-3), (1e-3 * ratio * factor,) * 2)
        for factor in np.linspace(0.99, 1.01, 9).tolist()
    ]
    return comparison(rounds, **settings)


def test_a_preparation_pays_after_so_many_calls():
    found = faster(preparations=ONCE)
    assert found.verdict == FASTER
    assert found.break_even.value == pytest.approx(12.5 / 0.5e-3, rel=1e-3)
    assert found.break_even.low < found.break_even.value < found.break_even.high
    low, high = found.time_ratio_low, found.time_ratio_high
    assert found.break_even.low == pytest.approx(12.5 / (1e-3 * (1 - low)))
    assert found.break_even.high == pytest.approx(12.5 / (1e-3 * (1 - high)))


@pytest.mark.parametrize(
    "found",
    [faster(), faster(preparations=ONCE[::-1]), faster(1.5, preparations=ONCE)],
    ids=["nothing was done", "only for the baseline", "slower"],
)
def test_otherwise_there_is_no_such_number(found):
    assert found.break_even is None
    assert found.to_dict()["break_even"] is None


def test_preparations_and_caches_survive_json():
    found = faster(preparations=ONCE, cache="cold")
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert written["break_even"]["calls"] == pytest.approx(25_000, rel=1e-3)
    assert Comparison.from_dict(written) == found


def test_a_comparison_from_before_there_were_any_can_be_read():
    written = faster().to_dict()
    del written["preparations"], written["cache"], written["break_even"]
    del written["pace"]["untimed_s"]
    assert Comparison.from_dict(written) == faster()


def test_a_notebook_shows_it():
    assert "setup time (compiled 12.0 s" in faster(preparations=ONCE)._repr_html_()

"""Checks of the lab on benchmarking."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinytorch.learning.checks.support import (
    OWN_CLOCK,
    Rng,
    ScriptedClock,
    close,
    keys_of,
    number_text,
)
from tinytorch.learning.work import Missed, Work, expect
from tinytorch.measure.interleaving import hodges_lehmann
from tinytorch.measure.samples import Samples

# ---------------------------------------------------------------- turns


class _Timed:
    """A function whose calls take scripted seconds; `first_s` is what the first one takes more."""

    def __init__(self, clock: ScriptedClock, seconds: float, first_s: float = 0.0) -> None:
        self.clock, self.seconds, self.first_s, self.calls = clock, seconds, first_s, 0

    def __call__(self) -> None:
        self.clock.now += self.seconds + (self.first_s if not self.calls else 0.0)
        self.calls += 1


def check_time_turn(work: Work, rng: Rng) -> None:
    """A turn is so many calls between two readings of the clock, and seconds are per call."""
    for _ in range(3):
        clock, loops = ScriptedClock(), int(rng.integers(3, 30))
        func = _Timed(clock, float(rng.uniform(1, 9)))
        found = work.time_turn(func, loops, clock)
        expect(
            func.calls == loops,
            "wrong-calls",
            f"with loops={loops} the function was called {func.calls} times",
        )
        expect(clock.reads, "own-clock", OWN_CLOCK)
        expect(
            clock.reads == 2,
            "reads-in-loop",
            f"the clock was read {clock.reads} times; twice is enough, before and after all calls",
        )
        expect(
            not close(found, loops * func.seconds),
            "total-for-call",
            f"that is the time of all {loops} calls together; return the seconds per call",
        )
        expect(
            close(found, func.seconds),
            "wrong-time",
            f"a call took {func.seconds:.4g} s by the clock, and you say {number_text(found)}",
        )


def check_calibrate(work: Work, rng: Rng) -> None:
    """A turn takes as long as asked for, and with half of the loops it would not."""
    for _ in range(4):
        clock = ScriptedClock()
        func, turn_s = _Timed(clock, float(rng.uniform(1, 9))), float(rng.uniform(1, 900))
        loops = _calibrated(work, func, turn_s, clock)
        expect(
            loops & (loops - 1) == 0,
            "not-doubled",
            f"{loops} is none of 1, 2, 4, 8, ...",
        )
        expect(
            loops * func.seconds >= turn_s,
            "turn-too-short",
            f"{loops} loops of {func.seconds:.3g} s are {loops * func.seconds:.3g} s, "
            f"and a turn is to take {turn_s:.3g} s",
        )
        expect(
            loops == 1 or loops / 2 * func.seconds < turn_s,
            "turn-too-long",
            f"{loops // 2} loops of {func.seconds:.3g} s are enough for {turn_s:.3g} s, and you "
            f"take {loops}",
        )


def check_cold(work: Work, rng: Rng) -> None:
    """The first call of all is not timed: it is not like the others."""
    clock = ScriptedClock()
    seconds = float(rng.uniform(1e-6, 2e-6))
    func = _Timed(clock, seconds, first_s=float(rng.uniform(1, 9)))
    loops = _calibrated(work, func, 1e-3, clock)
    expect(
        loops * seconds >= 1e-3,
        "cold-calibration",
        f"the first call took {func.first_s:.1f} s longer than all others, and you stopped at "
        f"{loops} loops because of it: make it before you time anything",
    )


def _calibrated(work: Work, func: _Timed, turn_s: float, clock: ScriptedClock) -> int:
    found = work.calibrate(func, turn_s, clock)
    expect(clock.reads, "own-clock", OWN_CLOCK)
    expect(
        isinstance(found, (int, np.integer)) and found > 0,
        "wrong-loops",
        f"loops are a whole number of at least 1, and you returned {number_text(found)}",
    )
    return int(found)


# ---------------------------------------------------------------- interval


def check_interval(work: Work, rng: Rng) -> None:
    """The ends are values, as few as the coverage allows, and the median lies between them."""
    for count in (6, 10, 11, *(int(each) for each in rng.integers(12, 200, 4))):
        for coverage in (0.95, 0.99, 0.8):
            values = _skewed(rng, count)
            if 1 - 2 / 2**count < coverage:
                continue
            _check_interval(work.median_interval(values, coverage), values, coverage)


def _skewed(rng: Rng, count: int) -> list[float]:
    values: list[float] = (1 + rng.pareto(1.5, count)).tolist()
    return values


def _check_interval(found: Any, values: list[float], coverage: float) -> None:
    low, median, high = _three(found)
    ordered, n = sorted(values), len(values)
    right = Samples("", tuple(values)).median_interval(coverage)
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(n)
    expect(
        not close((high - low) / 2, half),
        "mean-interval",
        "that is as wide as mean ± 1.96 s/√n, which is about the mean, and assumes a bell",
    )
    expect(
        close(median, np.median(values)),
        "wrong-median",
        f"the median of {n} values is {np.median(values):.5g}, not {number_text(median)}",
    )
    expect(
        not (n > 20 and low < right.low and high > right.high and low < np.percentile(values, 12)),
        "spread-of-values",
        "that is where most *values* lie; the median is known better than that, and the better the "
        "more values there are",
    )
    expect(
        low in ordered and high in ordered,
        "no-value",
        f"{number_text(low)} to {number_text(high)}: the ends are two of the sorted values",
    )
    k = ordered.index(right.low)
    expect(
        not (low > right.low and _coverage(n, ordered.index(low)) >= 2 * coverage - 1),
        "one-tail",
        f"you leave out {ordered.index(low)} of {n} values at each end: at most that many on one "
        "side, *or* on the other, so both tails count",
    )
    expect(
        (low, high) == (ordered[k], ordered[n - 1 - k]),
        "wrong-interval",
        f"of {n} values and {coverage:.0%}, {k} are left out at each end; yours goes from value "
        f"{ordered.index(low) + 1} to value {ordered.index(high) + 1}",
    )


def _coverage(n: int, k: int) -> float:
    return 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n


def _three(found: Any) -> tuple[float, float, float]:
    expect(
        isinstance(found, (tuple, list)) and len(found) == 3,
        "no-three",
        "median_interval should return three numbers: low, median, high",
    )
    low, median, high = (float(each) for each in found)
    expect(low <= median <= high, "wrong-sides", "the median does not lie between low and high")
    return low, median, high


def check_few_values(work: Work, rng: Rng) -> None:
    """With too few values for the coverage there is no interval, and an error says so."""
    for count, coverage in ((5, 0.95), (2, 0.95), (7, 0.99), (int(rng.integers(1, 5)), 0.95)):
        try:
            work.median_interval(_skewed(rng, count), coverage)
        except ValueError:
            continue
        raise Missed(
            "too-few",
            f"{count} values cannot have an interval of {coverage:.0%}, and you returned one: "
            f"all of them lie on one side of the median with a chance of {2 / 2**count:.1%}",
        )


# ---------------------------------------------------------------- tail


def check_chance_of_slow(work: Work, rng: Rng) -> None:
    """The chance grows with the calls of a page, and never above 1."""
    for _ in range(4):
        q, requests = int(rng.integers(50, 100)), int(rng.integers(2, 300))
        found, wanted = work.chance_of_slow(q, requests), 1 - (q / 100) ** requests
        expect(
            not close(found, requests * (1 - q / 100)),
            "added-up",
            f"{requests} chances of {100 - q}% are not {requests * (100 - q)}%: more than one call "
            "of a page may be slow",
        )
        expect(
            close(wanted, 0.5) or not close(found, (q / 100) ** requests),
            "inverse",
            "that is the chance that no call is slow",
        )
        expect(
            close(found, wanted),
            "wrong-chance",
            f"of {requests} calls, at least one beyond the p{q}: {wanted:.4f}, "
            f"not {number_text(found)}",
        )


def check_calls_for(work: Work, rng: Rng) -> None:
    """So many calls are expected beyond the percentile, and with one call less they are not."""
    cases = [(q, int(rng.integers(3, 40))) for q in (50, 75, 90, 95, 99)]
    for q, beyond in [(90, 10), *cases]:
        found = work.calls_for(q, beyond)
        wanted = -(-100 * beyond // (100 - q))
        expect(
            q == 50 or found != math.ceil(100 * beyond / q),
            "below-for-beyond",
            f"of that many calls {beyond} lie below the p{q}; beyond it are {100 - q}%",
        )
        expect(
            found == wanted or found != math.ceil(beyond / (1 - q / 100)),
            "rounding-error-rounded-up",
            f"{wanted} calls would do, and you say {number_text(found)}: 1 - {q / 100} is not "
            "exact in floats, and the error is rounded up to a call; percents are whole numbers",
        )
        expect(
            found == wanted,
            "wrong-calls-for",
            f"{wanted} calls have {beyond} beyond the p{q}, and you say {number_text(found)}",
        )
    found = work.calls_for(90, 1.05)
    expect(
        found == 11, "not-whole", f"{number_text(found)} calls: make it whole, and not too small"
    )


PAGES = 4000
WIDE = 5.0
"""Standard deviations that a share may be off: one in a million is."""


def check_page_times(work: Work, rng: Rng) -> None:
    """A page takes as long as the slowest of its calls, each drawn from all that were measured."""
    for requests in (1, int(rng.integers(3, 9)), int(rng.integers(20, 60))):
        values = np.sort(rng.gamma(2.0, 1.0, 30))
        found = np.asarray(work.page_times(values.tolist(), requests, PAGES, rng))
        expect(
            found.shape == (PAGES,),
            "wrong-shape",
            f"{PAGES} pages have as many times; yours have the shape {found.shape}",
        )
        expect(
            np.max(found) <= values[-1],
            "sum-for-slowest",
            f"a page took {np.max(found):.3f}, and the slowest call ever {values[-1]:.3f}: the "
            "calls of a page run at once, it waits for one of them",
        )
        expect(
            np.isin(found, values).all(),
            "no-value",
            "a page takes as long as one of its calls, so each time is one of the values",
        )
        for place in (19, 26):  # values with a third, and with a tenth, of all above them
            _check_share(found, values, place, requests)


def _check_share(found: Any, values: Any, place: int, requests: int) -> None:
    share, below = float((found <= values[place]).mean()), (place + 1) / len(values)
    wanted = below**requests

    def is_near(chance: float) -> bool:
        return abs(share - chance) <= WIDE * math.sqrt(chance * (1 - chance) / PAGES) + 1 / PAGES

    expect(
        requests == 1 or is_near(wanted) or not is_near(below),
        "single-call",
        f"pages with {requests} calls are as quick as single calls; they wait for the slowest",
    )
    expect(
        requests == 1 or is_near(wanted) or not is_near(1 - (1 - below) ** requests),
        "fastest-for-slowest",
        "your pages wait for the fastest of their calls",
    )
    expect(
        is_near(wanted),
        "wrong-pages",
        f"{wanted:.1%} of pages with {requests} calls are quicker than {values[place]:.3f}; of "
        f"yours {share:.1%}. Is every value as likely in every call?",
    )


# ---------------------------------------------------------------- pairs


class _Machine:
    """Two sides on a machine that gets slower with every call; it knows who was called when."""

    def __init__(self, rng: Rng) -> None:
        self.clock, self.called, self.drift = ScriptedClock(), "", float(rng.uniform(0.01, 0.02))
        self.seconds = {"a": float(rng.uniform(1, 2)), "b": float(rng.uniform(5, 9))}
        self.a, self.b = self._side("a"), self._side("b")

    def _side(self, name: str) -> Callable[[], None]:
        def call() -> None:
            self.clock.now += self.seconds[name] * (1 + self.drift * len(self.called))
            self.called += name

        return call

    def times(self, at: int, loops: int) -> float:
        """Return the seconds per call of the turn that began with this call."""
        name = self.called[at]
        slower = [1 + self.drift * number for number in range(at, at + loops)]
        return self.seconds[name] * sum(slower) / loops


def check_pairs(work: Work, rng: Rng) -> None:
    """Both sides have a turn in each round, and their times are filed by side and round."""
    for loops in (1, int(rng.integers(2, 5))):
        machine, rounds = _Machine(rng), int(rng.integers(12, 20))
        a_times, b_times = _pairs(work, machine, rounds, rng, loops)
        called = machine.called
        total = 2 + 2 * rounds * loops
        expect(
            len(called) != total - 2,
            "cold",
            "the first calls are timed: call each side once before the rounds begin",
        )
        turns = [called[at : at + loops] for at in range(2, len(called), loops)]
        letters = "".join(each[:1] for each in turns)
        expect(
            letters not in ("a" * rounds + "b" * rounds, "b" * rounds + "a" * rounds),
            "a-then-b",
            "all turns of one side come before those of the other: whatever slows the machine "
            "meets one of them only",
        )
        expect(
            len(called) == total and sorted(called[:2]) == ["a", "b"],
            "wrong-calls",
            f"two calls to warm up and {rounds} rounds of two turns with {loops} calls are {total} "
            f"calls; you made {len(called)}",
        )
        expect(
            all(each in ("a" * loops, "b" * loops) for each in turns)
            and all(sorted(letters[at : at + 2]) == ["a", "b"] for at in range(0, 2 * rounds, 2)),
            "not-in-rounds",
            f"a round is a turn of both sides; yours begin with {', '.join(turns[:6])}",
        )
        _check_filed(machine, (a_times, b_times), letters, loops)


def _pairs(work: Work, machine: _Machine, rounds: int, rng: Rng, loops: int) -> list[list[float]]:
    found = work.interleaved(machine.a, machine.b, rounds, rng, loops=loops, clock=machine.clock)
    expect(machine.clock.reads, "own-clock", OWN_CLOCK)
    expect(
        isinstance(found, (tuple, list)) and len(found) == 2,
        "no-two",
        "interleaved should return two lists, the times of A and those of B",
    )
    return [[float(each) for each in times] for times in found]


def _check_filed(
    machine: _Machine, found: Sequence[Sequence[float]], letters: str, loops: int
) -> None:
    wanted: dict[str, list[float]] = {"a": [], "b": []}
    for number, letter in enumerate(letters):
        wanted[letter].append(machine.times(2 + number * loops, loops))
    by_place = [[], []]  # type: list[list[float]]
    for number in range(len(letters)):
        by_place[number % 2].append(machine.times(2 + number * loops, loops))
    expect(
        close(found[0], wanted["a"]) or not close(found[0], by_place[0]),
        "sides-swapped",
        "your lists hold who was first and who was second; where B was first, its time is in A's",
    )
    expect(
        close(found[0], wanted["a"]) and close(found[1], wanted["b"]),
        "wrong-times",
        f"A's turns took {_listed(wanted['a'])} s by the clock, and yours are {_listed(found[0])}",
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:.3f}" for each in list(values)[:4]) + " ..."


def check_order(work: Work, rng: Rng) -> None:
    """The order within rounds is random, and comes from the generator that was passed in."""
    seed, rounds = int(rng.integers(1 << 30)), 64
    orders = []
    for each in (seed, seed, seed + 1):
        machine = _Machine(rng)
        _pairs(work, machine, rounds, np.random.default_rng(each), 1)
        orders.append(machine.called[2::2])
    firsts = orders[0].count("a")
    # Of 64 coins, fewer than 12 or more than 52 heads come up once in a million times.
    expect(
        12 <= firsts <= 52,
        "fixed-order",
        f"A was first in {firsts} of {rounds} rounds: what comes second finds other caches",
    )
    alternating = {("ab" * rounds)[:rounds], ("ba" * rounds)[:rounds]}
    expect(
        orders[0] not in alternating,
        "fixed-order",
        "the order alternates: what happens every second round then meets one side only",
    )
    expect(
        orders[0] == orders[1] and orders[0] != orders[2],
        "own-randomness",
        "with the same generator the order should be the same, and with another one different: "
        "draw from `rng`",
    )


# ---------------------------------------------------------------- verdict


def _paired(rng: Rng, ratio: float, spread: float, count: int = 41) -> tuple[Any, Any]:
    """Draw the times of rounds, slow and quick ones, whose median ratio is exactly this."""
    rounds = rng.lognormal(0, 1.0, count)
    logs = rng.uniform(-spread, spread, count)
    logs -= np.median(logs)
    return rounds, rounds * ratio * np.exp(logs)


def check_ratio(work: Work, rng: Rng) -> None:
    """The ratio is the median of B over A in each round, with the interval of these ratios."""
    for _ in range(3):
        ratio = float(rng.choice([rng.uniform(0.5, 0.7), rng.uniform(1.5, 2.0)]))
        a, b = _paired(rng, ratio, 0.05)
        found = work.ab_test(a.tolist(), b.tolist())
        keys_of(found, "ab_test", ("ratio", "low", "high", "verdict"))
        expect(
            not close(found["ratio"], 1 / ratio, tolerance=1e-3),
            "inverse",
            "that is A over B; below 1 has to mean that B is faster",
        )
        unpaired = np.median(b) / np.median(a), np.mean(b) / np.mean(a)
        expect(
            close(found["ratio"], ratio)
            or not any(close(found["ratio"], each) for each in unpaired),
            "unpaired",
            "you compare all of B with all of A; take the ratio within each round first",
        )
        expect(
            close(found["ratio"], ratio),
            "wrong-ratio",
            f"the median of the ratios is {ratio:.5f}, not {number_text(found['ratio'])}",
        )
        for coverage in (0.95, 0.8):
            found = work.ab_test(a.tolist(), b.tolist(), coverage=coverage)
            right = Samples("", tuple(b / a)).median_interval(coverage)
            expect(
                close((found["low"], found["high"]), (right.low, right.high)),
                "wrong-interval",
                f"with {coverage:.0%} it is {right.low:.4f} to {right.high:.4f}; yours is "
                f"{number_text(found['low'])} to {number_text(found['high'])}",
            )


def check_verdict(work: Work, rng: Rng) -> None:
    """The verdict is about the whole interval and the band, and may be inconclusive."""
    for _ in range(3):
        band = float(rng.uniform(0.02, 0.1))
        narrow, wide = band / 20, 6 * band
        cases = (
            ("faster", 1 / (1 + 2 * band), narrow),
            ("slower", 1 + 2 * band, narrow),
            ("same", 1.0, narrow),
            ("inconclusive", 1.0, wide),
            ("same", 1 + band / 2, narrow),
            ("same", 1 / (1 + band / 2), narrow),
            ("inconclusive", 1 + 1.2 * band, wide),
            ("inconclusive", 1 / (1 + 1.2 * band), wide),
            ("slower", 1 + 1.5 * band, narrow),
        )
        for wanted, ratio, spread in cases:
            found = work.ab_test(*_paired(rng, ratio, spread), band=band)
            _check_verdict(found, wanted, ratio, band)


def _check_verdict(found: dict[str, Any], wanted: str, ratio: float, band: float) -> None:
    verdict = found["verdict"]
    if verdict == wanted:
        return
    seen = f"{ratio:.3f} ({found['low']:.3f} to {found['high']:.3f}) with a band of {band:.1%}"
    known = ("faster", "slower", "same", "inconclusive")
    expect(verdict in known, "unknown-verdict", f"{verdict!r} is none of {', '.join(known)}")
    expect(
        not (wanted == "inconclusive" and verdict == "same"),
        "absence-of-evidence",
        f"{seen} is not `same`: the interval reaches far beyond the band",
    )
    expect(
        wanted != "inconclusive",
        "no-interval",
        f"{seen} is not {verdict!r}: only a part of the interval lies there",
    )
    expect(
        not (wanted == "same" and verdict in ("faster", "slower")),
        "band-ignored",
        f"{seen} is not {verdict!r}: a difference within the band does not matter",
    )
    expect(
        {wanted, verdict} != {"faster", "slower"},
        "wrong-direction",
        f"{seen} is {wanted!r}: a ratio below 1 means that B takes less time",
    )
    raise Missed("wrong-verdict", f"{seen} is {wanted!r}, not {verdict!r}")


# ---------------------------------------------------------------- alarms


def check_alarm_rate(work: Work, rng: Rng) -> None:
    """Each experiment draws anew, and both directions are alarms; nothing else is."""
    for _ in range(3):
        experiments = int(rng.integers(20, 60))
        words = rng.choice(["faster", "slower", "same", "inconclusive"], experiments).tolist()
        drawn: list[tuple[list[int], list[int]]] = []

        def draw(drawn: list[tuple[list[int], list[int]]] = drawn) -> tuple[list[int], list[int]]:
            drawn.append(([len(drawn)], [len(drawn)]))
            return drawn[-1]

        def decide(a: list[int], b: list[int], words: list[str] = words) -> str:
            expect(a == b, "wrong-pair", "the two lists of a draw belong together")
            return words[a[0]] if a[0] < len(words) else "same"

        found = work.alarm_rate(decide, draw, experiments)
        expect(
            len(drawn) > 1,
            "drawn-once",
            "every experiment decides about the same times: draw anew for each",
        )
        expect(
            len(drawn) == experiments,
            "wrong-experiments",
            f"{experiments} experiments are as many draws, and you made {len(drawn)}",
        )
        share = {word: words.count(word) / experiments for word in words}
        faster, slower = share.get("faster", 0.0), share.get("slower", 0.0)
        rate = faster + slower
        expect(
            close(rate, faster + 1e-9)
            or close(rate, slower + 1e-9)
            or not any(close(found, each) for each in (faster, slower)),
            "one-direction",
            "you count one direction; false claims of `slower` and of `faster` are both alarms",
        )
        expect(
            close(found, rate) or not close(found, rate + share.get("same", 0.0)),
            "same-counted",
            "`same` claims no difference, so it is no alarm",
        )
        expect(
            not close(found, rate * experiments),
            "count-for-share",
            "that is the number of alarms; the share is of all experiments",
        )
        expect(close(found, rate), "wrong-rate", f"it is {rate:.3f}, not {number_text(found)}")


def check_peeking(work: Work, rng: Rng) -> None:
    """Each look sees the first pairs only, and the first claim of a difference ends it."""
    for _ in range(4):
        looks = sorted(int(each) for each in rng.choice(np.arange(6, 90), 5, replace=False))
        alarm_at, word = int(rng.integers(5)), str(rng.choice(["faster", "slower"]))
        said = [
            word if n >= alarm_at else str(rng.choice(["same", "inconclusive"])) for n in range(5)
        ]
        if rng.random() < 0.5:
            said[alarm_at + 1 :] = ["same"] * (4 - alarm_at)
        _check_looks(work, looks, said, said[alarm_at], alarm_at + 1)
    looks = [int(rng.integers(6, 20)), 30]
    _check_looks(work, looks, ["inconclusive", "same"], "same", 2)
    _check_looks(work, looks, ["same", "inconclusive"], "inconclusive", 2)


def _check_looks(work: Work, looks: list[int], said: list[str], wanted: str, until: int) -> None:
    seen: list[int] = []

    def decide(a: Sequence[int], b: Sequence[int]) -> str:
        n = len(a)
        expect(
            list(a) == list(range(n)) and list(b) == list(range(100, 100 + n)),
            "wrong-part",
            "a look sees the *first* n values of A and of B",
        )
        expect(
            n in looks,
            "whole-data",
            f"a look saw {n} pairs; looks are at {', '.join(map(str, looks))}",
        )
        seen.append(n)
        return said[looks.index(n)]

    decide_early = work.peeking(decide, looks)
    expect(
        callable(decide_early),
        "no-function",
        "peeking should return a function of two lists, which does the looking",
    )
    found = decide_early(list(range(100)), list(range(100, 200)))
    expect(
        not (wanted in ("faster", "slower") and found in ("same", "inconclusive")),
        "goes-on",
        f"the looks said {', '.join(said)}, and you returned {found!r}: who peeks stops at a claim",
    )
    expect(
        found == wanted,
        "wrong-end",
        f"the looks said {', '.join(said)}; the verdict is {wanted!r}, not {found!r}",
    )
    expect(
        seen == looks[:until],
        "goes-on",
        f"after the look at {looks[until - 1]} pairs there is a verdict; you looked "
        f"{len(seen)} times",
    )


# ---------------------------------------------------------------- score

MEASURES = ("latency", "memory", "size")


def _heat(
    rng: Rng, factor: float, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    reference = {name: float(rng.uniform(0.1, 90)) for name in (*names, "not scored")}
    entry = {name: each / factor for name, each in reference.items()}
    entry["not scored"] *= float(rng.uniform(5, 9))
    return reference, entry


def check_score_of_a_heat(work: Work, rng: Rng) -> None:
    """In a heat, the measures that are scored are averaged by their logarithms."""
    for _ in range(3):
        count = int(rng.integers(2, 4))
        names = MEASURES[:count]
        heat = _heat(rng, 1.0, names)
        for number, name in enumerate(names):  # some better and some worse, so that means differ
            heat[1][name] *= float(rng.uniform(2, 6)) ** (-1) ** number
        ratios = np.array([heat[0][name] / heat[1][name] for name in names])
        found = work.score([heat] * 6, names)
        wanted = float(np.exp(np.log(ratios).mean()))
        expect(
            not close(found, 1 / wanted),
            "inverse",
            "that is how many times *worse* it is: less is better, so the reference stands above",
        )
        expect(
            not close(found, float(ratios.mean())),
            "arithmetic",
            f"that is the mean of {', '.join(f'{each:.3f}' for each in ratios)}; "
            "twice and half as good would not cancel out",
        )
        expect(
            not close(found, math.log(wanted)),
            "logarithm",
            "that is the logarithm of the score; where does exp belong?",
        )
        expect(
            close(found, wanted),
            "wrong-heat",
            f"heats with the ratios {', '.join(f'{each:.3f}' for each in ratios)} score "
            f"{wanted:.4f}, not {number_text(found)}; only the measures that are named count",
        )


def check_score_over_heats(work: Work, rng: Rng) -> None:
    """Over heats it is the median of the means of all pairs, each heat with itself, too."""
    for count in (6, 7, int(rng.integers(8, 12))):
        logs = rng.normal(0.5, 0.2, count)
        logs[0] += 3.0  # a broken heat
        heats = [_heat(rng, float(np.exp(each)), MEASURES) for each in logs]
        found, wanted = work.score(heats, MEASURES), math.exp(hodges_lehmann(logs.tolist()))
        i, j = np.triu_indices(count, 1)
        wrong = {
            "best-of": (max(logs), "that is the best heat; luck would pay"),
            "mean-of-heats": (logs.mean(), "that is the mean over heats; one broken heat moves it"),
            "median-of-heats": (np.median(logs), "that is the median over heats, not over pairs"),
            "without-itself": (
                np.median((logs[i] + logs[j]) / 2),
                "each heat is paired with itself, too",
            ),
        }
        for code, (value, words) in wrong.items():
            expect(close(math.exp(value), wanted) or not close(found, math.exp(value)), code, words)
        expect(
            close(found, wanted),
            "wrong-score",
            f"{count} heats score {wanted:.5f}, not {number_text(found)}",
        )


CHECKS = {
    "turns": (check_time_turn, check_calibrate, check_cold),
    "interval": (check_interval, check_few_values),
    "tail": (check_chance_of_slow, check_calls_for, check_page_times),
    "pairs": (check_pairs, check_order),
    "verdict": (check_ratio, check_verdict),
    "alarms": (check_alarm_rate, check_peeking),
    "score": (check_score_of_a_heat, check_score_over_heats),
}

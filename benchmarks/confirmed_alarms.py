"""Confirmed alarms: what was recorded of the noise, and a SIMULATION of histories made of it.

    python benchmarks/confirmed_alarms.py --record benchmarks/confirmed_alarms.json [--runs 200]
    python benchmarks/confirmed_alarms.py --simulate [--histories 100] [--commits 200]

`--record` measures: the times of three kinds of work, each in a new process, one run after the
other, as a job of CI would; and how often the comparer, with the line of `gate --confirm`, calls
identical work slower (false alarms) and work with 5% more of it (found). Its sides are factories in
one process, not commits in worktrees.

`--simulate` measures nothing. It makes histories of the recorded times, turned around at random
places, and looks at each commit for a suspicion, as `gate --confirm` does; what the comparer would
say then is drawn with its recorded error rates. So it shows what the rules do with such noise, and
not that noise elsewhere is alike.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from comparer_power import KINDS, STEPS

RECORDED = Path(__file__).with_suffix(".json")
RUN_S = 0.2
EFFECT = 0.05
BUDGET_S = 5.0


# ---------------------------------------------------------------- recording


def one_run() -> dict[str, float]:
    """Return the median time of each kind of work in this process."""
    found = {}
    for name in KINDS:
        work = KINDS[name]()(STEPS)
        for _ in range(5):
            work()
        times, end = [], time.perf_counter() + RUN_S
        while time.perf_counter() < end:
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        found[name] = float(np.median(times))
    return found


def record_runs(count: int, pause_s: float) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(count):
        time.sleep(pause_s)
        ran = subprocess.run(
            [sys.executable, __file__, "--one-run"], capture_output=True, text=True, check=True
        )
        for name, value in json.loads(ran.stdout).items():
            values[name].append(value)
    return values


def record_comparer(trials: int) -> dict[str, Any]:
    """Compare identical work, and work with 5% more, as often as told."""
    from tinytorch import compare

    line = 1 + EFFECT / 2
    counts = {0: [0, 0, 0], 5: [0, 0, 0]}
    for number in range(trials):
        for name, fresh in KINDS.items():
            for extra, count in counts.items():
                found = compare(
                    lambda fresh=fresh: fresh()(STEPS),
                    lambda fresh=fresh, extra=extra: fresh()(STEPS + extra),
                    factories=True,
                    evidence=False,
                    budget_s=BUDGET_S,
                    is_known=lambda ratio: ratio.is_below(line) is not None,
                    seed=number,
                )
                is_below = found.ratio.is_below(line)
                count[0] += is_below is False
                count[1] += is_below is True
                count[2] += 1
                print(name, extra, found.ratio.value, is_below, file=sys.stderr, flush=True)
    return {
        f"+{extra}%": {"slower": slower, "not slower": below, "trials": total}
        for extra, (slower, below, total) in counts.items()
    }


# ---------------------------------------------------------------- the simulation


@dataclass(frozen=True)
class Rates:
    """How often the comparer says slower: of identical commits, and of one that is 5% slower."""

    false_alarm: float
    found: float


def upper_bound(hits: int, trials: int) -> float:
    """Return the 95% upper bound of a share (Wilson), so that few trials are no good news."""
    z, share = 1.645, hits / trials
    centre = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return (centre + reach) / (1 + z * z / trials)


def recorded_rates(recorded: dict[str, Any]) -> Rates:
    """Return the recorded rates, each at the unfavourable end of its interval."""
    same, slower = recorded["comparer"]["+0%"], recorded["comparer"]["+5%"]
    missed = slower["trials"] - slower["slower"]
    return Rates(
        upper_bound(same["slower"], same["trials"]), 1 - upper_bound(missed, slower["trials"])
    )


def history_of(recorded: dict[str, Any], commits: int, rng: np.random.Generator) -> list[float]:
    """Return recorded times in their order, from a random place on, perhaps backwards."""
    runs = np.asarray(recorded["runs"][rng.choice(sorted(recorded["runs"]))])
    turned = np.roll(runs, rng.integers(len(runs)))[:: rng.choice([-1, 1])]
    return [float(each) for each in np.resize(turned, commits)]


@dataclass(frozen=True)
class Outcome:
    """What became of one history."""

    alarms: tuple[int, ...]
    suspicions: int


def walk(
    values: list[float], changed_at: int | None, rates: Rates, rng: np.random.Generator
) -> Outcome:
    """Go through a history commit by commit, as a job on the main branch does."""
    from tinytorch.records.alarms import RECENT_COMMITS, suspicious_shift

    alarms, suspicions, start = [], 0, 0
    for end in range(1, len(values) + 1):
        found = suspicious_shift(values[start:end], EFFECT)
        if found is None:
            continue
        suspicions += 1
        before, after = start + found.before, end - 1
        is_slower = changed_at is not None and before < changed_at <= after
        if rng.random() < (rates.found if is_slower else rates.false_alarm):
            alarms.append(after)
            start = max(start, after - RECENT_COMMITS + 1)  # it is known: a new level begins
    return Outcome(tuple(alarms), suspicions)


def simulate(
    recorded: dict[str, Any], *, histories: int = 100, commits: int = 200, seed: int = 0
) -> dict[str, float]:
    rng, rates = np.random.default_rng(seed), recorded_rates(recorded)
    quiet = [walk(history_of(recorded, commits, rng), None, rates, rng) for _ in range(histories)]
    found_within, delays = 0, []
    for _ in range(histories):
        values = history_of(recorded, commits, rng)
        at = int(rng.integers(commits // 10, commits - 3))
        slower = [value * (1 + EFFECT * (place >= at)) for place, value in enumerate(values)]
        alarms = walk(slower[: at + 10], at, rates, rng).alarms
        delay = next((each - at for each in alarms if each >= at), None)
        found_within += delay is not None and delay < 3
        delays += [] if delay is None else [delay]
    return {
        "histories": histories,
        "commits": commits,
        "false_alarm_rate_used": rates.false_alarm,
        "found_rate_used": rates.found,
        "mean_alarms_without_change": float(np.mean([len(each.alarms) for each in quiet])),
        "mean_measurements_without_change": float(np.mean([each.suspicions for each in quiet])),
        "found_within_three_commits": found_within / histories,
        "mean_delay": float(np.mean(delays)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between runs")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--one-run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_run:
        print(json.dumps(one_run()))
    if options.record:
        from tinytorch.measure.environment import describe_environment

        environment = describe_environment().to_dict()
        about = {name: environment[name] for name in ("cpu_model", "usable_cores", "python")}
        recorded = json.loads(options.record.read_text()) if options.record.exists() else {}
        recorded["machine"] = about
        if options.runs:
            recorded["runs"] = record_runs(options.runs, options.pause)
        if options.trials:
            recorded["comparer"] = record_comparer(options.trials)
        options.record.write_text(json.dumps(recorded, indent=1) + "\n")
    if options.simulate:
        recorded = json.loads(RECORDED.read_text())
        found = simulate(recorded, histories=options.histories, commits=options.commits)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

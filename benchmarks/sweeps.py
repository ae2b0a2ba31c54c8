"""Sweeps on Ray under fire: kills, memory, overhead, and A/A comparisons beside busy slots.

    python benchmarks/sweeps.py --kills 100 --trials 2000
    python benchmarks/sweeps.py --steady --trials 2000
    python benchmarks/sweeps.py --false-alarms 100
    python benchmarks/sweeps.py --extrapolate

Nodes are processes of this machine (`ray.cluster_utils.Cluster`), with one slot each; trials are
those of `short_trials.py`, which need no model. `--kills` kills nodes without grace, and drivers,
at random, adds a node for each and starts the driver again, until the sweep is complete: then
every key must be in the store, once. `--steady` kills nothing, and reports how much the driver's
memory grows from trial 100 to the last, and the median of what a slot takes per trial beyond the
child process. `--false-alarms` compares identical models on all slots at once, one core each.

`--extrapolate` measures nothing: it is a SIMULATION that draws queue, stragglers and failures for
up to a thousand machines from unit costs; see docs/scale.md for what it leaves out.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
STORE_BYTES = 80 << 20
NODES = 3
STARTS = 5


# ---------------------------------------------------------------- the cluster and the driver


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a cluster of a head without slots, and its nodes with one slot each."""
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_system_config": {"worker_niceness": 0},
    }
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made, [add_node(made) for _ in range(nodes)]
    finally:
        made.shutdown()


def add_node(made: Any) -> Any:
    """Add a node with one slot; on a busy machine Ray gives up its start, and it is tried again."""
    from tinytorch.scale.ray import RESOURCE

    node = {"num_cpus": 1, "resources": {RESOURCE: 1}, "object_store_memory": STORE_BYTES}
    for _ in range(STARTS - 1):
        try:
            return made.add_node(**node, wait=False)
        except Exception as error:
            print(f"a node did not start: {error}", file=sys.stderr)
    return made.add_node(**node, wait=False)


def short_sweep(trials: int, store: str) -> Any:
    """Return the plan of a sweep of so many short trials: it goes on where it was."""
    from tinytorch.benchmarking.suite_file import Suite, SuiteWorkload
    from tinytorch.benchmarking.sweep import plan_sweep

    sizes = range(1, trials + 1)
    suite = Suite("short trials", [SuiteWorkload("mlp", batch_sizes=sizes)], timeout_s=60.0)
    return plan_sweep(suite, store=store)


def drive(address: str, store: str, trials: int, seconds: float) -> None:
    """Run the sweep to its end or that of the time, and print what it took.

    This is the process that is killed.
    """
    import psutil

    from tinytorch.benchmarking.sweep import Sweep
    from tinytorch.scale.ray import RayExecutor

    plan, process = short_sweep(trials, store), psutil.Process()
    memory: dict[int, int] = {}
    gaps: list[float] = []
    child_s: list[float] = []
    last: dict[str, float] = {}
    end = time.perf_counter() + seconds
    # There may be more nodes than cores here; times do not matter.
    with RayExecutor(address, cores=1, may_share=True) as executor:
        sweep = Sweep(plan, executor, serve="short_trials:answer")
        for count, done in enumerate(sweep.run(), start=1):
            now = time.perf_counter()
            if done.slot in last:
                gaps.append(now - last[done.slot] - done.child_s)
            last[done.slot] = now
            child_s.append(done.child_s)
            if count % 100 == 0:
                memory[count] = process.memory_info().rss
            if time.perf_counter() > end:
                break
        lost = executor.lost_slots
    grown = (memory[max(memory)] - memory[100]) if 100 in memory else None
    report = {
        "trials_of_this_driver": len(child_s),
        "lost_slots": lost,
        "grown_mb": None if grown is None else grown / 2**20,
        "from_to": [100, max(memory, default=0)],
        "overhead_ms": 1e3 * float(np.median(gaps)) if gaps else None,
        "overhead_p90_ms": 1e3 * float(np.percentile(gaps, 90)) if gaps else None,
        "child_ms": 1e3 * float(np.median(child_s)) if child_s else None,
    }
    print(json.dumps(report), flush=True)


def start_driver(
    address: str, store: str, trials: int, *, seconds: float = float("inf")
) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--driver", address, "--store", store]
    return subprocess.Popen(
        [*command, "--trials", str(trials), "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(store).parent,  # in no repository: a new commit would begin a new sweep
    )


def end(driver: subprocess.Popen[str]) -> None:
    """Kill a driver if it runs, and let go of what it writes to."""
    driver.kill()
    with driver:
        pass


def keys_in(store: str) -> list[str]:
    from tinytorch.benchmarking.sweep import TRIAL_KIND
    from tinytorch.records.store import open_store

    with open_store(store) as opened:
        return [name for _, name in opened.names_in_runs("", kind=TRIAL_KIND)]


# ---------------------------------------------------------------- what is measured


def killed(trials: int, kills: int, *, seed: int, nodes: int = NODES) -> dict[str, Any]:
    """Kill nodes and drivers at random while a sweep runs; return what is in the store then."""
    rng = np.random.default_rng(seed)
    moments = sorted(rng.choice(np.arange(1, trials), size=kills, replace=False).tolist())
    counts = {"node": 0, "driver": 0}
    drivers, started = 1, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, cluster(nodes) as (made, alive):
        store = f"{folder}/records.sqlite"
        driver = start_driver(made.address, store, trials)
        try:
            while driver.poll() is None or driver.returncode:
                if driver.poll() is not None:  # killed: another goes on
                    end(driver)
                    driver, drivers = start_driver(made.address, store, trials), drivers + 1
                time.sleep(0.2)
                if not moments or not Path(store).exists() or len(keys_in(store)) < moments[0]:
                    continue
                moments.pop(0)
                if rng.random() < 0.7:
                    counts["node"] += 1
                    victim = alive.pop(int(rng.integers(len(alive))))
                    made.remove_node(victim, allow_graceful=False)
                    alive.append(add_node(made))
                else:
                    counts["driver"] += 1
                    driver.send_signal(signal.SIGKILL)
                    driver.wait()
                print(sum(counts.values()), counts, len(keys_in(store)), file=sys.stderr)
        finally:
            end(driver)
        found = keys_in(store)
        expected = {entry.name for entry in short_sweep(trials, f"{folder}/other").entries}
    return {
        "trials": trials,
        "kills": counts,
        "drivers": drivers,
        "missing": len(expected - set(found)),
        "doubled": len(found) - len(set(found)),
        "unknown": len(set(found) - expected),
        "seconds": time.perf_counter() - started,
    }


def steady(trials: int, *, seconds: float, nodes: int = 2) -> dict[str, Any]:
    """Run a sweep without kills, for so many seconds at most; return what its driver reports."""
    with tempfile.TemporaryDirectory() as folder, cluster(nodes) as (made, _):
        driver = start_driver(made.address, f"{folder}/records.sqlite", trials, seconds=seconds)
        try:
            output, _ = driver.communicate(timeout=seconds + 300)
        finally:
            driver.kill()
            driver.wait()
        found = keys_in(f"{folder}/records.sqlite")
    assert len(found) == len(set(found))
    return {"trials": trials, "stored": len(found), "slots": nodes, **json.loads(output)}


def false_alarms(count: int, *, at_once: int = 10) -> dict[str, Any]:
    """Compare identical models on every core at once, with a slot for each."""
    from tinytorch.benchmarking.checks import share_interval
    from tinytorch.benchmarking.sweep import arrival_call
    from tinytorch.measure.executor import LocalExecutor, core_groups, usable_core_numbers

    cores = usable_core_numbers()
    calls = -(-count // at_once)
    alarms = done = disturbed = 0
    floors = []
    with LocalExecutor(core_groups(cores, len(cores))) as executor:
        for number in range(calls):
            call = arrival_call(at_once)
            executor.submit(type(call)(str(number), call.serve, call.arguments, 600.0))
        for _ in range(calls):
            for result in executor.wait():
                assert result.failure is None, result.failure
                alarms += result.answer["alarms"]
                done += result.answer["checks"]
                floors.append(result.answer["floor"])
                disturbed += result.is_disturbed
    share = share_interval(alarms, done)
    return {
        "slots": len(cores),
        "comparisons": done,
        "alarms": alarms,
        "share": share.value,
        "share_low": share.low,
        "share_high": share.high,
        "median_floor": float(np.median([x for x in floors if x is not None] or [np.nan])),
        "disturbed_calls": f"{disturbed} of {calls}",
        "load_average": os.getloadavg()[0],
    }


# ---------------------------------------------------------------- the simulation


def simulated(
    slots: int,
    trials: int,
    *,
    trial_s: float,
    overhead_s: float,
    driver_s: float,
    arrival_s: float,
    failures_per_day: float,
    spread: float = 0.3,
    seed: int = 0,
) -> dict[str, float]:
    """Draw one sweep: a driver that handles one result after the other, slots that fail and return.

    A trial takes `trial_s` in the median, log-normal with `spread`, and `overhead_s`; the driver
    takes `driver_s` for each result; a slot fails so often a day, loses its trial, and is back
    after `arrival_s`.
    """
    rng = np.random.default_rng(seed)
    lifetime_s = 86_400 / failures_per_day if failures_per_day else np.inf
    events = [(arrival_s, slot, "free") for slot in range(slots)]
    next_call_there = [arrival_s] * slots  # a slot has the call after the one that it measures
    left, in_store, driver_free, busy_s, lost = trials, 0, 0.0, 0.0, 0
    while in_store < trials:
        now, slot, what = heapq.heappop(events)
        if what == "lost":
            lost, left = lost + 1, left + 1
            heapq.heappush(events, (now + arrival_s, slot, "free"))
            continue
        if what == "done":
            in_store += 1
            driver_free = max(driver_free, now) + driver_s
            now, next_call_there[slot] = max(now, next_call_there[slot]), driver_free
        if not left:
            continue
        left -= 1
        took = trial_s * float(np.exp(rng.normal(0, spread)))
        dies = float(rng.exponential(lifetime_s)) if failures_per_day else np.inf
        if dies < took:
            heapq.heappush(events, (now + dies, slot, "lost"))
        else:
            busy_s += took
            heapq.heappush(events, (now + took + overhead_s, slot, "done"))
    return {"hours": driver_free / 3600, "busy": busy_s / (slots * driver_free), "lost": lost}


def extrapolate(costs: dict[str, float]) -> None:
    for slots in (1, 10, 100, 1000):
        for trial_s in (3.0, 60.0):
            for failures in (0.0, 4.0):
                found = simulated(
                    slots, 20_000, trial_s=trial_s, failures_per_day=failures, **costs
                )
                row = {"slots": slots, "trial_s": trial_s, "failures_per_day": failures, **found}
                print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--false-alarms", type=int)
    parser.add_argument("--extrapolate", action="store_true")
    parser.add_argument("--overhead", type=float, default=0.02, help="seconds per trial and slot")
    parser.add_argument("--driver-s", type=float, default=0.005, help="seconds per result")
    parser.add_argument("--arrival", type=float, default=30.0, help="seconds until a slot is ready")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="limit of --steady")
    parser.add_argument("--driver", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        drive(options.driver, options.store, options.trials, options.seconds)
    if options.kills is not None:
        found = killed(options.trials, options.kills, seed=options.seed, nodes=options.nodes)
        print(json.dumps(found))
    if options.steady:
        print(json.dumps(steady(options.trials, seconds=options.seconds)))
    if options.false_alarms:
        print(json.dumps(false_alarms(options.false_alarms)))
    if options.extrapolate:
        costs = {
            "overhead_s": options.overhead,
            "driver_s": options.driver_s,
            "arrival_s": options.arrival,
        }
        extrapolate(costs)


if __name__ == "__main__":
    main()

"""How long the monitor goes without a false alarm, and how soon it finds and names what we inject.

    python benchmarks/monitor_changes.py record load.f64 --hours 2   # 50 requests per second
    python benchmarks/monitor_changes.py summarise load.f64          # -> monitor_load.npz
    python benchmarks/monitor_changes.py alarms                      # streams from its minutes
    python benchmarks/monitor_changes.py faults

Streams are drawn in blocks of minutes from the recorded load of the zoo's `cnn`; each learns its
reference from its own first hour, as a service does, and then runs for weeks.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import time
from pathlib import Path

import numpy as np

from tinytorch.monitoring import changes
from tinytorch.monitoring.changes import ChangeDetector, Evidence, Minute, weights_of
from tinytorch.monitoring.reference import Calls, learn, size_shares

HERE = Path(__file__).parent
SUMMARY = HERE / "monitor_load.npz"
LAYERS = tuple(f"layers.{number}" for number in range(8))
SIZES, MIX = (1, 2, 4, 8), (0.5, 0.25, 0.15, 0.1)
RATE = 50
COLUMNS = 6 + len(LAYERS) + 5
"""due, start, wait, size, latency, processor time; layers; two probes, resident bytes, 2 unused."""
PER_MINUTE = 100
"""Recorded calls of a minute that the summary keeps; a monitor samples about 30 of them."""
SAMPLED = 30
DRAWS = 20
LEARNING = 60


# ---------------------------------------------------------------- the load


def record(path, hours):
    """Call the zoo's cnn at random moments, 50 times a second, and write what each call took."""
    import psutil

    from tinytorch import Tensor, no_grad
    from tinytorch.models.zoo import load_zoo
    from tinytorch.monitoring.sampling import Probe

    rng = np.random.default_rng(0)
    model, clock, probe = load_zoo("cnn").model, time.perf_counter, Probe()
    marks, rows, me = [], [], psutil.Process()
    for layer in model.layers:
        layer.forward = _timed(layer.forward, marks, clock)
    images = {n: rng.normal(size=(n, 1, 28, 28)).astype(np.float32) for n in SIZES}
    due, end = clock(), clock() + 3600 * hours
    with open(path, "ab", buffering=0) as file:
        while due < end:
            due += rng.exponential(1 / RATE)
            time.sleep(max(0.0, due - clock()))
            size = int(rng.choice(SIZES, p=MIX))
            marks.clear()
            begun, cpu = clock(), time.thread_time()
            with no_grad():
                model(Tensor(images[size]))
            done, cpu = clock(), time.thread_time() - cpu
            row = [due, begun, begun - due, size, done - begun, cpu, *marks, *probe()]
            resident = me.memory_info().rss if len(rows) % RATE == 0 else rows[-1][-3]
            rows.append([*row, resident, 0, 0])
            if len(rows) == 500:
                file.write(np.array(rows).tobytes())
                rows.clear()


def _timed(forward, marks, clock):
    def timed(*inputs, **settings):
        begun = clock()
        try:
            return forward(*inputs, **settings)
        finally:
            marks.append(clock() - begun)

    return timed


def summarise(path):
    """Keep some calls of each minute as 16-bit logarithms, and what is counted per minute."""
    rows = np.fromfile(path).reshape(-1, COLUMNS)
    minutes = ((rows[:, 1] - rows[0, 1]) // 60).astype(int)
    rng = np.random.default_rng(0)
    calls, counts, memory = [], [], []
    for minute in range(minutes.max()):
        of = rows[minutes == minute]
        if len(of) < PER_MINUTE:
            continue
        kept = of[np.sort(rng.choice(len(of), PER_MINUTE, replace=False))]
        calls.append(np.column_stack([kept[:, [3, 4]], kept[:, 6:16]]))
        counts.append([(of[:, 3] == size).sum() for size in SIZES])
        memory.append(of[:, 16].max())
    logs = np.log2(np.stack(calls))  # 1/1024 of an octave: 0.07%
    packed = np.round(logs * 1024).astype(np.int16)
    np.savez_compressed(
        SUMMARY, calls=packed, counts=np.array(counts, np.int32), memory=np.array(memory)
    )
    hours = (rows[-1, 1] - rows[0, 1]) / 3600
    size = SUMMARY.stat().st_size
    print(f"{len(rows)} calls in {hours:.2f} h; {len(calls)} minutes; {size:,} bytes")


class Load:
    """The recorded minutes."""

    def __init__(self, path=SUMMARY):
        kept = np.load(path)
        self.calls = 2.0 ** (kept["calls"] / 1024)  # (minutes, calls, size latency layers probes)
        self.calls[..., 0] = np.round(self.calls[..., 0])
        self.counts, self.memory = kept["counts"], kept["memory"]
        self.minutes = len(self.calls)

    def some(self, minute, rng, count=SAMPLED):
        """Draw the sampled calls of a minute."""
        return self.calls[minute][rng.choice(PER_MINUTE, count, replace=False)]

    def size_counts(self, minute):
        return dict(zip(SIZES, map(int, self.counts[minute]), strict=True))


def as_calls(rows, minutes):
    return Calls(
        minutes=np.asarray(minutes, float),
        sizes=rows[:, 0],
        in_flight=np.ones(len(rows)),
        probes=rows[:, 10:12],
        total=rows[:, 1],
        layers=rows[:, 2:10],
    )


def blocks(load, length, rng, block):
    """Yield minutes of the load, in blocks that begin anywhere (it is a circle)."""
    found = []
    while len(found) < length:
        found.extend((rng.integers(load.minutes) + np.arange(block)) % load.minutes)
    return np.array(found[:length])


def learned(load, rng, block):
    """Return the reference that a stream learns from its first hour."""
    minutes = blocks(load, LEARNING, rng, block)
    rows = np.concatenate([load.some(minute, rng) for minute in minutes])
    calls = as_calls(rows, np.repeat(np.arange(LEARNING), SAMPLED))
    counts = [load.size_counts(minute) for minute in minutes]
    return learn(calls, LAYERS, counts, load.memory[minutes])


def slow_minutes(load, reference, rng):
    """Return whether each recorded minute is slow, for several draws of its calls.

    Shape (minutes, draws, series).
    """
    columns = [LAYERS.index(each) for each in reference.layers]
    rows = load.calls.reshape(-1, load.calls.shape[-1])
    calls = as_calls(rows, np.zeros(len(rows)))
    above = reference.residuals(calls.of(np.ones(len(rows), bool), columns)) > reference.levels
    above = above.reshape(load.minutes, PER_MINUTE, -1)
    drawn = np.argsort(rng.random((load.minutes, DRAWS, PER_MINUTE)), axis=-1)[..., :SAMPLED]
    shares = above[np.arange(load.minutes)[:, None, None], drawn].mean(2)
    mix = np.array([size_shares(load.size_counts(m), reference.sizes) for m in range(load.minutes)])
    slow = [
        shares > reference.limits,
        np.repeat((mix > reference.size_limits)[:, None], DRAWS, 1),
        np.repeat((load.memory > reference.memory_limit)[:, None, None], DRAWS, 1),
    ]
    return np.concatenate(slow, axis=-1)


# ---------------------------------------------------------------- false alarms


def alarms(load, *, streams, days, block, seed):
    """Return the minute of the first alarm of each stream (that of the end without one)."""
    length = days * 24 * 60
    firsts, named = [], {}
    for start in range(0, streams, 50):
        rngs = [np.random.default_rng([seed, start + x]) for x in range(min(50, streams - start))]
        references = [learned(load, rng, block) for rng in rngs]
        width = max(len(each.series) for each in references) + len(SIZES) + 2
        table = np.full((len(rngs), load.minutes, DRAWS, width), False)
        weights = np.zeros((len(rngs), width))
        order = np.empty((len(rngs), length), np.int32)
        for at, (rng, reference) in enumerate(zip(rngs, references, strict=True)):
            slow = slow_minutes(load, reference, rng)
            table[at, ..., : slow.shape[-1]] = slow
            weights[at, : slow.shape[-1]] = weights_of(reference)
            order[at] = blocks(load, length, rng, block) * DRAWS + rng.integers(DRAWS, size=length)
        firsts += _first_alarms(table, weights, order, references, named)
    return np.array(firsts), named


def _first_alarms(table, weights, order, references, named):
    streams = len(order)
    flat = table.reshape(streams, -1, table.shape[-1])
    evidence = Evidence(np.zeros(table.shape[-1]), (streams,))
    firsts = np.full(streams, order.shape[1])
    rows = np.arange(streams)
    for minute in range(order.shape[1]):
        evidence.add(flat[rows, order[:, minute]].astype(float), minute)
        reached = (evidence.values * weights).sum(1) >= changes.FALSE_ALARM_MINUTES
        for at in np.flatnonzero(reached & (firsts == order.shape[1])):
            firsts[at] = minute + 1
            top = int(np.argmax(evidence.values[at] * weights[at]))
            series = references[at].series
            name = series[top] if top < len(series) else "inputs or memory"
            named[name] = named.get(name, 0) + 1
    return list(firsts)


def run_length(firsts, days):
    """Return the mean run length in days and its lower 95% bound, where streams may not end."""
    from scipy.stats import chi2

    found = int((firsts < days * 24 * 60).sum())
    total = firsts.sum() / 24 / 60
    return total / max(1, found), 2 * total / chi2.ppf(0.95, 2 * found + 2), found


# ---------------------------------------------------------------- faults


def inject(fault, rows, counts, memory, age):
    """Change a minute's calls, counts and resident bytes as a fault does after `age` minutes."""
    rows, counts = rows.copy(), dict(counts)
    if fault.startswith("layers."):
        at = 2 + LAYERS.index(fault)
        rows[:, 1] += 0.2 * rows[:, at]
        rows[:, at] *= 1.2
    elif fault == "machine":
        rows[:, 1:] *= 1.5
    elif fault == "inputs":
        counts[8], counts[1] = counts[8] + counts[1] // 2, counts[1] // 2
    elif fault == "memory":
        memory += (age + 1) * 10 * 2**20
    return rows, counts, memory


def find(load, fault, *, seed, block, hours=4):
    """Return the first changes of one stream in which a fault begins after two hours."""
    rng = np.random.default_rng([seed, 7])
    detector = ChangeDetector(LAYERS, LEARNING)
    begins = 2 * 60
    for minute, of in enumerate(blocks(load, hours * 60, rng, block)):
        rows, counts, memory = load.some(of, rng), load.size_counts(of), load.memory[of]
        if minute >= begins:
            rows, counts, memory = inject(fault, rows, counts, memory, minute - begins)
        calls = as_calls(rows, np.full(len(rows), minute))
        for each in detector.add(Minute(60.0 * (minute + 1), counts, memory, calls)):
            return each, minute + 1 - begins
    return None, None


def faults(load, *, streams, block, seed):
    for fault in (*LAYERS, "machine", "inputs", "memory"):
        found = [find(load, fault, seed=seed + at, block=block) for at in range(streams)]
        kind = "layer" if fault.startswith("layers.") else fault
        subject = fault if kind == "layer" else ""
        right = [
            delay
            for change, delay in found
            if change and delay > 0 and change.kind == kind and subject in (change.subject, "")
        ]
        early = sum(change is not None and delay <= 0 for change, delay in found)
        missed = sum(change is None for change, _ in found)
        others = sorted({f"{c.kind} {c.subject}" for c, d in found if c and d not in right})
        within = sum(delay <= 10 for delay in right)
        quantiles = np.percentile(right, [50, 90]) if right else (np.nan, np.nan)
        yield {
            "fault": fault,
            "streams": streams,
            "named": len(right),
            "within_10_minutes": within,
            "median_minutes": float(quantiles[0]),
            "p90_minutes": float(quantiles[1]),
            "before_it_began": early,
            "missed": missed,
            "other_names": others,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "summarise", "alarms", "faults"])
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--days", type=int, default=45)
    parser.add_argument("--block", type=int, default=10, help="minutes of a block")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=Path, default=SUMMARY)
    options = parser.parse_args()
    if options.what in ("record", "summarise"):
        record(options.path, options.hours) if options.what == "record" else summarise(options.path)
        return
    load = Load(options.load)
    print(f"{load.minutes} recorded minutes, blocks of {options.block}")
    if options.what == "alarms":
        given = {"streams": options.streams, "block": options.block, "seed": options.seed}
        firsts, named = alarms(load, days=options.days, **given)
        mean, low, found = run_length(firsts, options.days)
        print(
            f"{options.streams} streams of {options.days} days: {found} with an alarm {named}; "
            f"mean run length {mean:.0f} days, at least {low:.0f} (95%)"
        )
        return
    for row in faults(load, streams=options.streams, block=options.block, seed=options.seed):
        print(json.dumps(row))


if __name__ == "__main__":
    main()

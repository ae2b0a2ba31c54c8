"""Does `tinytorch optimize` survive kill -9 at any moment? Loops of killing and going on.

    python benchmarks/killed_optimize.py [--loops 50] [--seed 0] [--budget 3000] [--json FILE]

A loop starts `optimize` with a store of its own, waits until it has kept a record or more, kills
the process after a random time, and looks: everything that was kept before is there and whole, no
worker is left after a second, and so on until a run comes to its end. That run has to take over
what is kept, and to recommend what a run that nobody disturbed recommends. Exit code 1 if not.

The budget is long: what a short one leaves out depends on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MODEL = """
import numpy as np
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload

def make():
    model = Sequential(Linear(256, 256, rng=0), ReLU(), Linear(256, 256, rng=1))
    return Workload("killed", model, (Tensor(np.ones((16, 256), np.float32)),))
"""
GOAL = ["--goal", "size", "--max-output-error", "0.1"]
"""Bytes are counted, so that the recommendation does not hang on how busy the machine is."""
LATEST_S = 3.0
MOST_KILLS = 4


@dataclass
class Loop:
    """What one loop has seen."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    damaged: int = 0
    workers_left: int = 0
    longest_s: float = 0.0
    is_resumed: bool = False
    recommended: str = ""

    def is_fine(self, wanted: str) -> bool:
        """Return whether nothing was lost, and the recommendation is the wanted one."""
        bad = self.lost or self.damaged or self.workers_left
        return not bad and self.is_resumed and self.recommended == wanted


def main() -> int:
    """Run the loops, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3000.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = undisturbed(folder, options.budget)
        print(f"undisturbed: {wanted!r}", flush=True)
        loops = []
        for number in range(options.loops):
            loops.append(one_loop(folder / f"{number}.sqlite", options.budget, chance))
            print(f"{number}: {loops[-1]}", flush=True)
    bad = [each for each in loops if not each.is_fine(wanted)]
    kills, kept = sum(each.kills for each in loops), sum(each.acknowledged for each in loops)
    print(
        f"{kills} kills in {len(loops)} loops, {kept} records kept before them, "
        f"{sum(each.lost for each in loops)} lost; {len(bad)} loops are not fine"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in loops], indent=1) + "\n")
    return 1 if bad else 0


def undisturbed(folder: Path, budget: float) -> str:
    """Return what is recommended where nobody disturbs."""
    process = start(folder / "undisturbed.sqlite", budget)
    shown, messages = process.communicate()
    if process.returncode:
        raise SystemExit(f"optimize ended with {process.returncode}: {messages.decode()}")
    return recommended(json.loads(shown))


def start(store: Path, budget: float) -> subprocess.Popen[bytes]:
    """Start `tinytorch optimize` with this store."""
    (store.parent / "killed.py").write_text(MODEL)
    command = [sys.executable, "-m", "tinytorch", "optimize", f"{store.parent / 'killed.py'}:make"]
    command += [*GOAL, "--budget", str(budget), "--json", "--store", str(store)]
    command += ["--only", "int8-dynamic", "int8-static", "int8-weights", "int4-weights"]
    return subprocess.Popen(
        command,
        cwd=store.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def recommended(found: dict[str, Any]) -> str:
    """Return the name of what is recommended, or an empty text."""
    return str(found["optimization"]["recommended"] or "")


def one_loop(store: Path, budget: float, chance: random.Random) -> Loop:
    """Kill runs after they have kept something, and let the last one come to its end."""
    seen, loop = kept(store), Loop()
    while True:
        process = start(store, budget)
        if loop.kills == MOST_KILLS or not kill_later(process, store, len(seen), chance, loop):
            shown, _ = process.communicate()
            found = json.loads(shown)
            loop.recommended = recommended(found)
            loop.is_resumed = set(seen) <= set(kept(store)) and not tried_twice(store)
            return loop
        before, seen = seen, kept(store)
        loop.acknowledged = len(seen)
        loop.lost += len(set(before) - set(seen))
        loop.damaged += damaged(store)


def kill_later(
    process: subprocess.Popen[bytes], store: Path, before: int, chance: random.Random, loop: Loop
) -> bool:
    """Kill a process some time after it has kept a record; False where it ended before."""
    acknowledged: list[str] = []
    while process.poll() is None and len(acknowledged) <= before:
        acknowledged = kept(store)
        time.sleep(0.02)
    end = time.monotonic() + chance.uniform(0, LATEST_S)
    while process.poll() is None and time.monotonic() < end:
        acknowledged = kept(store)
        time.sleep(0.02)
    if process.poll() is not None:
        return False
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    started = time.monotonic()
    _, left = psutil.wait_procs(workers, timeout=30)
    loop.longest_s = max(loop.longest_s, time.monotonic() - started if workers else 0.0)
    loop.workers_left += len(left)
    loop.kills += 1
    loop.lost += len(set(acknowledged) - set(kept(store)))
    return True


def kept(store: Path) -> list[str]:
    """Return the hashes of the records that are kept."""
    from tinytorch.records.store import RecordStore

    if not store.exists() or not store.stat().st_size:
        return []
    with RecordStore(store, timeout_s=60) as opened:
        return opened.hashes()


def tried_twice(store: Path) -> list[str]:
    """Return what was tried again although an attempt had been kept."""
    from tinytorch.records.store import RecordStore
    from tinytorch.tuning.records import ATTEMPT_KIND

    with RecordStore(store, timeout_s=60) as opened:
        counts = Counter(each.name for each in opened.find(kind=ATTEMPT_KIND))
    return [name for name, count in counts.items() if count > 1]


def damaged(store: Path) -> int:
    """Return how many records, or parts of the store, are damaged."""
    from tinytorch.records.store import RecordStore

    with RecordStore(store, timeout_s=60) as opened:
        return len(opened.check())


if __name__ == "__main__":
    sys.exit(main())

"""Many records and many writers: what a shared history takes, in SQLite and in PostgreSQL.

    python benchmarks/history_load.py --sizes 10000 1000000 [--only sqlite|postgres]
    python benchmarks/history_load.py --writers 50 --records 200 --kills 10
    python benchmarks/history_load.py --pages 100000

The first times the list, and the trend and change points of one series, in stores of these sizes;
their rows are synthetic (a hundred records per series), their bodies are real records. The second
lets many processes write into one database while its server is killed with SIGKILL and started
again, and a fifth of them, too; then all begin again from their start. The third makes the static
pages of that many records, once from nothing and once after ten more. PostgreSQL is a server of its
own in a temporary folder (Debian's package), with `fsync` off as in the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from postgres_server import PostgresServer, find_programs

from tinytorch.measure.samples import Samples
from tinytorch.records.history import overview, records_named, trends
from tinytorch.records.record import Record, canonical_json
from tinytorch.records.store import RecordStore

SERIES_LENGTH = 100
START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS_AT_ONCE = 5000
REPEATS = 7


def synthetic_rows(count: int, *, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield rows of records: series of SERIES_LENGTH, with a change of level in every tenth."""
    rng = np.random.default_rng(seed)
    environment = {"fingerprint": "c0ffee5eed15600d", "cpu_model": "synthetic", "python": "3.11"}
    for number in range(count):
        series, place = divmod(number, SERIES_LENGTH)
        level = 1.1 if series % 10 == 0 and place >= SERIES_LENGTH // 2 else 1.0
        value = 0.002 * level * float(np.exp(rng.normal(0, 0.02)))
        if place == 0:
            name = f"workload {series}"
            sample = Record("gate", name, {}, environment, {"batch": 8})
            key = sample.settings_key
        values = tuple(value * (1 + 0.01 * step) for step in range(-2, 3))
        created = (START + timedelta(minutes=number)).isoformat(timespec="microseconds")
        content: dict[str, Any] = {
            "schema": 1,
            "kind": "gate",
            "name": name,
            "created_at": created,
            "run": "",
            "samples": {"latency": Samples("latency", values, "s").to_dict()},
            "environment": {**environment, "commit": {"hash": f"{number:040x}"}},
            "settings": {"batch": 8},
            "details": {},
            "notes": [],
        }
        hash = hashlib.sha256(canonical_json(content).encode("ascii")).hexdigest()
        body = canonical_json({**content, "hash": hash})
        fingerprint = environment["fingerprint"]
        yield hash, "gate", name, fingerprint, key, "", created, body


def fill(store: RecordStore, count: int) -> float:
    started, rows = time.perf_counter(), synthetic_rows(count)
    while chunk := [row for _, row in zip(range(ROWS_AT_ONCE), rows, strict=False)]:
        store._database.add(chunk)
    return time.perf_counter() - started


@contextmanager
def stores(kind: str) -> Iterator[Callable[[int], str]]:
    """Yield what gives the address of an empty store for each size."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield lambda size: f"{folder}/{size}.sqlite"
        return
    programs = find_programs()
    assert programs is not None, "there is no server of PostgreSQL; install it"
    server = PostgresServer(programs)
    try:
        yield lambda size: server.address(server.new_database())
    finally:
        server.stop()


def typical(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def size_report(kind: str, sizes: list[int]) -> dict[str, Any]:
    report: dict[str, Any] = {"store": kind, "sizes": {}}
    with stores(kind) as new:
        for size in sizes:
            with RecordStore(new(size)) as store:
                took = fill(store, size)
                if kind == "postgres":  # as autovacuum does after a while
                    store._database.connection.execute("ANALYZE")
                name = f"workload {size // SERIES_LENGTH // 2}"
                found = trends(records_named(store, name), "latency")
                assert len(store) == size
                assert len(found[0].points) == SERIES_LENGTH
                report["sizes"][size] = {
                    "filling_s": took,
                    "list_s": typical(lambda s=store: overview(s, limit=21)),
                    "trend_s": typical(lambda s=store, n=name: trends(records_named(s, n))),
                    "change_points_s": typical(
                        lambda s=store, n=name: [
                            each.change_points for each in trends(records_named(s, n))
                        ]
                    ),
                }
                print(kind, size, json.dumps(report["sizes"][size]), flush=True)
    small, large = (report["sizes"][size] for size in (min(sizes), max(sizes)))
    report["ratios"] = {
        what: large[what] / small[what] for what in ("list_s", "trend_s", "change_points_s")
    }
    print(kind, "ratios", json.dumps(report["ratios"]), flush=True)
    return report


def load_report(writers: int, records: int, kills: int) -> dict[str, Any]:
    """Run what the slow test of the store runs, with other counts."""
    import test_postgres

    programs = find_programs()
    assert programs is not None, "there is no server of PostgreSQL; install it"
    server = PostgresServer(programs)
    try:
        database = server.address(server.new_database())
        started = time.perf_counter()
        test_postgres.check_many_writers(server, database, writers, records, kills)
        took = time.perf_counter() - started
    finally:
        server.stop()
    report = {"writers": writers, "records_each": records, "kills": kills, "seconds": took}
    report |= {"lost": 0, "doubled": 0}  # anything else is an assertion above
    print(json.dumps(report), flush=True)
    return report


def pages_report(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/records.sqlite"
        with RecordStore(path) as store:
            fill(store, count)
        report = {"records": count}
        for what, more in (("from_nothing_s", 0), ("nothing_new_s", 0), ("ten_more_s", 10)):
            if more:
                with RecordStore(path) as store:
                    rows = list(synthetic_rows(count + more))[-more:]
                    store._database.add(rows)
            command = [sys.executable, "-m", "tinytorch.cli.main", "history"]
            code = "import sys; from tinytorch.cli.main import main; sys.exit(main())"
            command = [sys.executable, "-c", code, "history"]
            started = time.perf_counter()
            subprocess.run([*command, "--store", path, "--html", f"{folder}/site/"], check=True)
            report[what] = time.perf_counter() - started
    print(json.dumps(report), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[])
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--writers", type=int, default=0)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pages", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "records"))
    if options.sizes:
        for kind in ("sqlite", "postgres"):
            if options.only in (None, kind):
                size_report(kind, options.sizes)
    if options.writers:
        load_report(options.writers, options.records, options.kills)
    if options.pages:
        pages_report(options.pages)


if __name__ == "__main__":
    main()

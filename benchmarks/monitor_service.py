"""p99 of a service under load, with and without the monitor, side by side; and a fault in it.

    python benchmarks/monitor_service.py --seconds 600 --rate 200

Two services, one with a monitor, get the same requests, due at the same random moments; latency
counts from when a request was due. `--slow-layer` instead serves in this process at 50 requests
a second, makes one layer a fifth slower after the reference was learned, and waits for its name.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import http.client
import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CONNECTIONS = 12
WARM_UP = 200


class Service:
    def __init__(self, name, folder, *, is_watched):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / name).mkdir()
        surroundings = {**os.environ, "MONITOR_SNAPSHOT": str(folder / name / "snapshot.json")}
        if not is_watched:
            surroundings["MONITOR_OFF"] = "1"
        command = [sys.executable, "-m", "uvicorn", "monitored_app:app", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--log-level", "warning"], cwd=HERE, env=surroundings
        )
        self.due, self.latencies, self.failed = queue.SimpleQueue(), [], 0
        self.threads = [threading.Thread(target=self._send) for _ in range(CONNECTIONS)]

    def get(self, path, connection=None):
        own = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        own.request("GET", path)
        answer = own.getresponse()
        return answer.status, answer.read()

    def wait(self):
        for _ in range(600):
            try:
                return self.get("/metrics")
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the service did not start")

    def _send(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while (moment := self.due.get()) is not None:
            try:
                status, _ = self.get("/predict?rows=4", connection)
                self.failed += status != 200
            except (OSError, http.client.HTTPException):
                self.failed += 1
                connection.close()
            self.latencies.append(time.perf_counter() - moment)


def side_by_side(seconds, rate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        watched = Service("watched", folder, is_watched=True)
        bare = Service("bare", folder, is_watched=False)
        try:
            for each in (watched, bare):
                each.wait()
                for _ in range(WARM_UP):
                    each.get("/predict?rows=4")
                for thread in each.threads:
                    thread.start()
            rng, due, end = np.random.default_rng(0), time.perf_counter(), seconds
            end += due
            while due < end:
                due += rng.exponential(1 / rate)
                time.sleep(max(0.0, due - time.perf_counter()))
                for each in rng.permutation([watched, bare]):
                    each.due.put(due)
            for each in (watched, bare):
                for _ in each.threads:
                    each.due.put(None)
                for thread in each.threads:
                    thread.join()
            seen = json.loads(watched.get("/monitor")[1])
        finally:
            for each in (watched, bare):
                each.process.terminate()
                each.process.wait(30)
    for label, each in (("with", watched), ("without", bare)):
        milliseconds = 1e3 * np.array(each.latencies)
        yield {
            "monitor": label,
            "requests": len(milliseconds),
            "failed": each.failed,
            **{f"p{q}_ms": float(np.percentile(milliseconds, q)) for q in (50, 90, 99)},
        }
    yield _difference(watched.latencies, bare.latencies)
    yield {"faults": seen["faults"], "sampled": seen["sampled"], "load": os.getloadavg()[0]}


def _difference(watched, bare):
    """Return the difference of the p99 with a bootstrapped 95% interval, in blocks of 200."""
    rng, length = np.random.default_rng(0), min(len(watched), len(bare)) // 200 * 200
    pairs = np.array([watched[:length], bare[:length]]).reshape(2, -1, 200)
    found = []
    for _ in range(500):
        chosen = pairs[:, rng.integers(pairs.shape[1], size=pairs.shape[1])].reshape(2, -1)
        found.append(np.subtract(*np.percentile(chosen, 99, axis=1)))
    low, middle, high = 1e3 * np.percentile(found, [2.5, 50, 97.5])
    return {"p99_added_ms": middle, "low": low, "high": high}


def slow_layer(minutes):
    """Serve 50 requests a second, make a layer a fifth slower for real, and wait for its name."""
    from tinytorch import Tensor, load_workload, no_grad
    from tinytorch.monitoring.monitor import Monitor

    model = load_workload("cnn").model
    slow = model.layers[3]
    plain, faults = slow.forward, {"is_on": False}

    def forward(x):
        begun = time.perf_counter()
        output = plain(x)
        if faults["is_on"]:
            end = time.perf_counter() + 0.2 * (time.perf_counter() - begun)
            while time.perf_counter() < end:
                pass
        return output

    slow.forward = forward
    rng, found = np.random.default_rng(0), []
    images = {n: rng.normal(size=(n, 1, 28, 28)).astype(np.float32) for n in (1, 2, 4, 8)}
    with Monitor(model, learning_minutes=minutes, on_change=found.append) as monitor, no_grad():
        begun = due = time.perf_counter()
        injected = None
        while not found and time.perf_counter() - begun < 60 * (minutes + 25):
            due += rng.exponential(1 / 50)
            time.sleep(max(0.0, due - time.perf_counter()))
            with monitor.request():
                model(Tensor(images[int(rng.choice([1, 2, 4, 8], p=[0.5, 0.25, 0.15, 0.1]))]))
            if injected is None and monitor._detector.reference is not None:
                faults["is_on"], injected = True, time.time()
                print(f"learned after {(time.perf_counter() - begun) / 60:.1f} min", flush=True)
    for change in found:
        minutes = (change.noticed - injected) / 60
        yield {"kind": change.kind, "subject": change.subject, "factor": change.factor,
               "noticed_after_min": minutes, "since_off_by_s": change.since - injected}  # fmt: skip
    yield {"found": len(found), "faults": monitor.faults, "load": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second, of each")
    parser.add_argument("--slow-layer", action="store_true")
    parser.add_argument("--learning-minutes", type=int, default=15)
    options = parser.parse_args()
    rows = (
        slow_layer(options.learning_minutes)
        if options.slow_layer
        else side_by_side(options.seconds, options.rate)
    )
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

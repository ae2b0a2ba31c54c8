"""A service with a monitor: workers that are forked, recycled and killed, scrapes at any moment."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from parts import require_part
from project_files import ROOT

require_part("prometheus_client")

from tinytorch.cli.main import main
from tinytorch.monitoring.snapshot import Snapshot, read_snapshot

STARTING_S = 120
FORKED = """
import os, sys
sys.path[:0] = {path!r}
import numpy as np
from tinytorch.monitoring.monitor import Monitor
from tinytorch.monitoring.prometheus import export_metrics, metrics_text

class Empty:
    def forward(self, x):
        return x

model = Empty()
monitor = Monitor(model, name="m")
export_metrics(monitor)
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        for _ in range(5):
            with monitor.request():
                model.forward(np.ones(2))
        monitor.tick()
        os._exit(0)
    os.waitpid(pid, 0)
print(metrics_text()[0].decode())
"""


def total(text, name):
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([\d.e+-]+)$", text, re.M)
    return sum(map(float, found))


def test_workers_that_were_forked_and_ended_are_counted(tmp_path):
    code = FORKED.format(path=[str(ROOT), *sys.path])
    surroundings = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=True
    )
    assert total(done.stdout, "tinytorch_request_seconds_count") == 15
    assert total(done.stdout, "tinytorch_call_seconds_count") == 15
    # The gauges of the three that have ended are gone, their counters are not.
    pids = re.findall(r'tinytorch_resident_bytes\{[^}]*pid="(\d+)"', done.stdout)
    assert len(pids) <= 1


def test_the_page_shows_the_service_that_is_tested():
    file = (ROOT / "benchmarks" / "monitored_app.py").read_text("utf-8")
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    assert f"```python\n{file[file.index('import os') :]}```" in page


class Service:
    """The service of docs/monitoring.md under uvicorn."""

    def __init__(self, folder, *, workers=1, requests_of_a_worker=None):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "metrics").mkdir(exist_ok=True)
        self.snapshot = folder / "snapshot-{pid}.json"
        code = (
            f"import sys; sys.path[:0] = {[str(ROOT / 'benchmarks'), str(ROOT), *sys.path]!r}\n"
            f"import uvicorn\n"
            f"if __name__ == '__main__':\n"
            f"    uvicorn.run('monitored_app:app', host='127.0.0.1', port={self.port}, "
            f"workers={workers}, limit_max_requests={requests_of_a_worker}, log_level='warning')\n"
        )
        (folder / "serve.py").write_text(code, "utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "serve.py")],
            env={
                **os.environ,
                "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"),
                "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)]),
                "MONITOR_SNAPSHOT": str(self.snapshot),
                "MONITOR_SAMPLE": "0.2",
                "OMP_NUM_THREADS": "1",
            },
        )

    def get(self, path):
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def wait(self, path="/metrics"):
        end = time.monotonic() + STARTING_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return self.get(path)
            except (URLError, ConnectionError):
                time.sleep(0.05)
        raise AssertionError("the service did not start")

    def serve(self, count):
        """Make requests until `count` were answered; a worker may go away meanwhile."""
        with ThreadPoolExecutor(4) as pool:
            return [each for each in pool.map(self._predict, range(count)) if each]

    def _predict(self, at):
        for _ in range(200):
            try:
                return json.loads(self.get(f"/predict?rows={1 + 3 * (at % 2)}"))
            except HTTPError:
                raise
            except (URLError, ConnectionError, OSError):
                time.sleep(0.05)
        return None

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def service(tmp_path):
    require_part("fastapi")
    require_part("uvicorn")
    started = []

    def start(**settings):
        started.append(Service(tmp_path, **settings))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()


@pytest.mark.slow
def test_workers_that_are_recycled_lose_no_count(service):
    running = service(workers=2, requests_of_a_worker=40)
    assert "tinytorch_request_seconds" in running.wait()  # a scrape before the first request
    answers = []
    while len({each["process"] for each in answers}) <= 2:  # until one was recycled
        assert len(answers) < 1200
        answers += running.serve(120)
    text = running.wait()
    assert total(text, "tinytorch_request_seconds_count") == len(answers)
    assert total(text, "tinytorch_monitor_faults_total") == 0
    assert len(re.findall(r"tinytorch_resident_bytes\{", text)) <= 3


@pytest.mark.slow
def test_kill_9_keeps_what_was_written_and_a_restart_goes_on(service, tmp_path, capsys):
    running = service()
    running.wait()
    answers = running.serve(40)
    worker = answers[0]["process"]
    end = time.monotonic() + STARTING_S
    file = tmp_path / f"snapshot-{worker}.json"
    while not (file.exists() and read_snapshot(str(file)).requests.n == 40):
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    running.process.wait(60)
    assert read_snapshot(str(file)).requests.n == 40
    assert not list(tmp_path.glob("*.partial"))
    again = service()
    again.wait()
    assert len(again.serve(10)) == 10
    assert main(["monitor", "report", f"http://127.0.0.1:{again.port}/monitor", "--json"]) == 0
    told = Snapshot.from_dict(json.loads(capsys.readouterr().out)["snapshot"])
    assert (told.latency.n, told.requests.n, told.faults) == (10, 10, 0)

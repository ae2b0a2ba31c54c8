"""Reading snapshots from files, folders and URLs; advice and the workload that come of them."""

import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tinytorch import Tensor, load_workload
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.errors import RecordError, SettingError
from tinytorch.monitoring import monitor as monitors
from tinytorch.monitoring import snapshot as snapshots
from tinytorch.monitoring.monitor import Monitor
from tinytorch.monitoring.production import advise_service, workload_text
from tinytorch.monitoring.snapshot import joined, read_snapshot


def a_snapshot(sizes=(1, 1, 1, 4), file=None):
    model = Sequential(Linear(16, 64, rng=0), ReLU(), Linear(64, 4, rng=1))
    with Monitor(model, sample=1.0, name="small", snapshot=file) as monitor:
        for size in sizes:
            with monitor.request():
                model(Tensor(np.ones((size, 16), np.float32)))
    return monitor.snapshot()


@pytest.fixture
def serving():
    """Give ``serving(answer) -> url`` where `answer(handler)` writes what a service answers."""
    servers = []

    def serve(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            def log_message(self, *anything): ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/monitor"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def says(content, code=200):
    def answer(handler):
        handler.send_response(code)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def test_a_snapshot_comes_back_from_a_file_and_from_a_url(tmp_path, serving):
    file = tmp_path / "snapshot.json"
    a_snapshot(file=file)
    found = read_snapshot(str(file))
    assert (found.name, found.latency.n, found.requests.n) == ("small", 4, 4)
    assert read_snapshot(serving(says(file.read_bytes()))).to_dict() == found.to_dict()


def test_those_of_all_workers_in_a_folder_add_up(tmp_path):
    for number in range(3):
        a_snapshot(file=tmp_path / f"{number}.json")
    found = read_snapshot(str(tmp_path))
    assert (found.processes, found.latency.n, found.sampled) == (3, 12, 12)
    assert {each.name: each.latency.n for each in found.sizes} == {"1x16": 9, "4x16": 3}
    assert [each.calls for each in found.layers] == [12, 12, 12]


def test_one_snapshot_joined_is_itself():
    one = a_snapshot()
    assert joined([one]) is one


@pytest.mark.parametrize(
    "content", [b"", b"{half", b"[]", b"{}", b'{"schema": 99}', b"\xff\xfe", b'{"schema": 1}']
)
def test_what_is_no_snapshot_says_so_in_one_line(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(RecordError) as error:
        read_snapshot(str(file))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there_says_what_to_pass(tmp_path):
    with pytest.raises(SettingError, match="no file"):
        read_snapshot(str(tmp_path / "none.json"))
    with pytest.raises(RecordError, match="no snapshot"):
        read_snapshot(str(tmp_path))


def test_a_service_that_does_not_answer_well_is_an_error(serving):
    with pytest.raises(RecordError, match="Not Found"):
        read_snapshot(serving(says(b"no", 404)))
    with pytest.raises(RecordError, match="gave no snapshot"):
        read_snapshot("http://127.0.0.1:1/monitor")


def test_an_answer_has_a_largest_size_and_a_longest_time(serving, monkeypatch):
    monkeypatch.setattr(snapshots, "MOST_BYTES", 1000)
    with pytest.raises(RecordError, match="larger"):
        read_snapshot(serving(says(b"x" * 5000)))
    monkeypatch.setattr(snapshots, "TIMEOUT_S", 0.3)

    def drips(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b"x")
            time.sleep(0.1)

    with pytest.raises(RecordError):
        read_snapshot(serving(drips))


def test_advice_names_the_slowest_layer_and_the_size_with_most_time(monkeypatch):
    ticks = itertools.count()  # every call takes as long, however busy the machine is
    monkeypatch.setattr(monitors, "perf_counter", lambda: next(ticks) / 1000)
    found = {each.rule: each for each in advise_service(a_snapshot((1, 64, 64, 64)))}
    assert found["production size"].title.startswith("Optimize for inputs of 64x16")
    assert all(0 <= each.share <= 1 for each in found.values())
    assert "production batch" not in found  # nobody waited: batches cannot form


def test_the_workload_has_the_observed_shapes(tmp_path):
    seen = a_snapshot([1] * 5 + [4] * 3)
    base = tmp_path / "base.py"
    base.write_text(
        "import numpy as np\n"
        "from tinytorch import Tensor, Workload\n"
        "from tinytorch.core.layers import Linear\n"
        "def make():\n"
        "    inputs = (Tensor(np.ones((2, 16), np.float32)),)\n"
        "    return Workload('base', Linear(16, 4, rng=0), inputs)\n"
    )
    file = tmp_path / "production.py"
    text = workload_text(seen, f"{base}:make", file)
    file.write_text(text)
    names = {}
    exec(compile(text, str(file), "exec"), names)
    assert names["SHAPES"] == {(1, 16): 5, (4, 16): 3}
    assert "--batch 1,4" in text
    workload = load_workload(f"{file}:make")
    assert workload.inputs[0].shape == next(iter(names["SHAPES"]))
    assert {batch[0].shape for batch in workload.calibration} == {(1, 16), (4, 16)}


def test_a_snapshot_without_shapes_makes_no_workload(tmp_path):
    with pytest.raises(SettingError):
        workload_text(a_snapshot(()), "mlp", tmp_path / "x.py")


def test_a_name_cannot_break_out_of_the_workload_file(tmp_path):
    seen = snapshots.replace(a_snapshot(), name='x"""\nimport os\n"""')
    names = {}
    exec(workload_text(seen, 'a"b', tmp_path / "x.py"), names)
    assert "os" not in names
    assert names["TARGET"] == 'a"b'


def test_a_snapshot_is_plain_json():
    assert json.loads(json.dumps(a_snapshot().to_dict(), allow_nan=False))

"""The monitor around a model: what it sees, what it leaves alone, and that nothing gets out."""

import asyncio
import copy
import os
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor
from tinytorch.codec import decode
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.errors import SettingError
from tinytorch.monitoring import monitor as monitors
from tinytorch.monitoring.histogram import BINS, Distribution, Histogram
from tinytorch.monitoring.monitor import MOST_SHAPES, Monitor
from tinytorch.monitoring.sampling import size_class
from tinytorch.monitoring.snapshot import Snapshot


class Empty:
    """A model that does nothing."""

    def forward(self, x):
        return x

    def __call__(self, x):
        return self.forward(x)


def small():
    return Sequential(Linear(4, 8, rng=0), ReLU(), Linear(8, 2, rng=1))


def rows(count):
    return Tensor(np.ones((count, 4), np.float32))


@pytest.fixture(params=["core", "torch"])
def model_and_input(request):
    if request.param == "core":
        return small(), rows
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, lambda count: torch.ones(count, 4)


def everything_replaced(model):
    return [name for name in ("forward", "_compiled_call_impl") if vars(model).get(name)]


# ---------------------------------------------------------------- what it sees


def test_calls_are_counted_by_the_size_of_their_input(model_and_input):
    model, make = model_and_input
    with Monitor(model, sample=0.0) as monitor:
        for count in (1, 1, 1, 8, 8):
            model(make(count))
    bins = {each.name: each.latency.n for each in monitor.snapshot().sizes}
    assert bins == {"1x4": 3, "8x4": 2}


def test_sampled_calls_have_the_times_of_their_layers(model_and_input):
    model, make = model_and_input
    with Monitor(model, sample=1.0) as monitor:
        for _ in range(4):
            model(make(2))
    seen = monitor.snapshot()
    assert [(each.path.rpartition(".")[2], each.calls) for each in seen.layers] == [
        ("0", 4),
        ("1", 4),
        ("2", 4),
    ]
    assert seen.sampled == 4
    assert 0 < sum(each.self_s for each in seen.layers) <= seen.sampled_s


def test_outputs_are_those_without_a_monitor(model_and_input):
    model, make = model_and_input
    expected = np.asarray(model(make(3)).data)
    with Monitor(model, sample=1.0):
        found = np.asarray(model(make(3)).data)
    np.testing.assert_array_equal(found, expected)


def test_sampling_takes_the_share_that_was_asked_for():
    model = Empty()
    with Monitor(model, sample=0.05) as monitor:
        for _ in range(4000):
            model(np.ones(2))
        seen = [monitor._samples.maxlen, len(monitor._samples) + monitor._sampled]
    deviation = np.sqrt(4000 * 0.05 * 0.95)
    assert abs(seen[1] - 200) < 5 * deviation


def test_a_request_counts_what_it_waits_before_the_model():
    model = Empty()
    with Monitor(model) as monitor, monitor.request(queued_s=0.5):
        model(np.ones(2))
    seen = monitor.snapshot()
    assert (seen.requests.n, seen.queued.n) == (1, 1)
    assert 0.5 <= seen.queued.sum_s <= seen.requests.sum_s


def test_requests_at_once_are_counted_in_asyncio():
    model = Empty()

    async def request(monitor, ready):
        async with monitor.request():
            await ready.wait()
            return model(np.ones(2))

    async def serve(monitor):
        ready = asyncio.Event()
        tasks = [asyncio.create_task(request(monitor, ready)) for _ in range(5)]
        await asyncio.sleep(0)
        assert monitor.snapshot().in_flight == 5
        ready.set()
        await asyncio.gather(*tasks)

    with Monitor(model) as monitor:
        asyncio.run(serve(monitor))
    seen = monitor.snapshot()
    assert (seen.in_flight, seen.most_in_flight, seen.requests.n, seen.queued.n) == (0, 5, 5, 5)


def test_threads_lose_no_call():
    model = small()

    def serve(monitor):
        for _ in range(200):
            with monitor.request():
                model(rows(1))

    with Monitor(model, sample=0.5) as monitor:
        threads = [threading.Thread(target=serve, args=(monitor,)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    seen = monitor.snapshot()
    assert (seen.requests.n, seen.latency.n, seen.in_flight, seen.faults) == (800, 800, 0, 0)
    assert all(not everything_replaced(layer) for layer in model.layers)


def test_a_minute_of_calls_reaches_the_detector():
    model, now = small(), 0.0
    with Monitor(model, sample=1.0, learning_minutes=2) as monitor:
        for minute in range(2):
            for _ in range(160):
                model(rows(1))
            now = monitor._minute_ends
            monitor.tick(now)
            assert monitor.snapshot().learned_minutes == minute + 1
    seen = monitor.snapshot()
    assert seen.reference.layers
    assert [each.calls for each in seen.minutes][:2] == [160, 160]
    assert Snapshot.from_dict(seen.to_dict()).to_dict() == seen.to_dict()


def test_changes_are_told_and_a_listener_that_fails_harms_nothing(monkeypatch):
    told, model = [], small()
    change = monitors.Change("layer", "layers.0", 0.0, 60.0, 1.2)

    def listen(found):
        told.append(found)
        raise ValueError("mine")

    with Monitor(model, on_change=listen) as monitor:
        monkeypatch.setattr(monitor._detector, "add", lambda minute: (change,))
        model(rows(1))
        monitor.tick(monitor._minute_ends)
    assert told == [change]
    assert monitor.faults == 1


# ---------------------------------------------------------------- what it leaves alone


def test_nothing_is_left_behind(model_and_input):
    model, make = model_and_input
    before = {name: dict(vars(layer)) for name, layer in _named(model)}
    with Monitor(model, sample=1.0):
        model(make(1))
        assert vars(model) != before[""]
    assert {name: dict(vars(layer)) for name, layer in _named(model)} == before


def _named(model):
    return list(model.named_modules())


def test_what_somebody_else_replaced_meanwhile_stays():
    model = Empty()
    monitor = Monitor(model)
    model.forward = other = lambda x: x + 1
    monitor.close()
    assert model.forward is other


def test_a_copy_of_a_watched_model_is_not_watched(model_and_input):
    model, make = model_and_input
    with Monitor(model) as monitor:
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            np.testing.assert_array_equal(twin(make(1)).data, twin.forward(make(1)).data)
            assert twin.forward.__self__ is twin
        assert monitor.snapshot().latency.n == 0


def test_a_monitor_that_is_off_touches_nothing():
    model = Empty()
    monitor = Monitor(model, enabled=False)
    with monitor.request():
        model(np.ones(2))
    assert vars(model) == {}
    assert monitor.snapshot().requests.n == 0


def test_closing_twice_is_fine_and_ends_the_thread():
    monitor = Monitor(Empty())
    monitor._start_thread()
    thread = monitor._thread
    monitor.close()
    monitor.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("settings", [{"sample": 1.5}, {"sample": -1}, {"learning_minutes": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError):
        Monitor(Empty(), **settings)


def test_a_model_that_cannot_be_watched_is_refused():
    with pytest.raises(SettingError, match="forward"):
        Monitor(len)


# ---------------------------------------------------------------- nothing gets out


def test_the_exception_of_the_model_passes_and_is_counted():
    class Broken(Empty):
        def forward(self, x):
            raise KeyError("mine")

    model = Broken()
    with Monitor(model, sample=1.0) as monitor:
        with pytest.raises(KeyError, match="mine"), monitor.request():
            model(np.ones(2))
        seen = monitor.snapshot()
    assert (seen.errors, seen.latency.n, seen.in_flight, seen.faults) == (1, 0, 0, 0)


@pytest.mark.parametrize("broken", ["shape_of", "size_class", "perf_counter"])
def test_what_fails_inside_is_counted_and_swallowed(monkeypatch, broken):
    def fail(*anything):
        raise RuntimeError("inside")

    model = small()
    with Monitor(model, sample=1.0) as monitor:
        if broken == "perf_counter":
            monkeypatch.setattr(monitor._layers, "stamp", fail)
        else:
            monkeypatch.setattr(monitors, broken, fail)
        with monitor.request():
            assert model(rows(2)).shape == (2, 2)
            assert model(rows(3)).shape == (3, 2)
        assert monitor._computing == 0
        assert all(not everything_replaced(layer) for layer in model.layers)
    assert monitor.faults >= 1
    assert "inside" in monitor.snapshot().last_fault


def test_an_input_without_a_shape_is_a_call_too():
    model = Empty()
    with Monitor(model) as monitor:
        assert model("text") == "text"
        assert model({"ids": [np.ones((2, 3))]})["ids"][0].shape == (2, 3)
    assert sorted(each.size for each in monitor.snapshot().sizes) == [0, size_class((2, 3))]
    assert monitor.faults == 0


def test_a_full_disk_is_counted_and_the_snapshot_before_stays(tmp_path, monkeypatch):
    file = tmp_path / "snapshot.json"
    model = Empty()
    with Monitor(model, snapshot=file) as monitor:
        model(np.ones(2))
        monitor.write()
        before = file.read_bytes()

        def full(path):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(monitors, "write_atomically", full)
        monitor.tick(monitor._next_snapshot)
        assert model(np.ones(2)).shape == (2,)
        assert monitor.faults == 1
        assert file.read_bytes() == before


def test_a_snapshot_that_is_broken_does_not_keep_a_service_from_starting(tmp_path):
    file = tmp_path / "snapshot.json"
    file.write_text("{half")
    with Monitor(Empty(), snapshot=file) as monitor:
        assert monitor.faults == 1


def test_a_restart_takes_up_the_reference(tmp_path):
    file = tmp_path / "snapshot.json"
    model = small()
    with Monitor(model, sample=1.0, learning_minutes=1, snapshot=file) as monitor:
        for _ in range(320):
            model(rows(1))
        monitor.tick(monitor._minute_ends)
    kept = decode(Snapshot, monitor.snapshot().to_dict()).reference
    assert kept is not None
    with Monitor(model, snapshot=file) as again:
        assert again.snapshot().reference.to_dict() == kept.to_dict()
    other = Sequential(Linear(4, 2, rng=0))
    with Monitor(other, snapshot=file) as another:
        assert another.snapshot().reference is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_worker_counts_for_itself():
    model = small()
    with Monitor(model, sample=1.0) as monitor:
        with monitor.request():
            model(rows(1))
        reading, writing = os.pipe()
        with monitor._lock:  # held by a thread that the child does not have
            pid = os.fork()
            if pid == 0:
                with monitor.request():
                    model(rows(1))
                seen = monitor.snapshot()
                os.write(writing, bytes([seen.requests.n, seen.latency.n, seen.faults]))
                os._exit(0)
        os.waitpid(pid, 0)
        assert list(os.read(reading, 3)) == [1, 1, 0]
        os.close(reading)
        os.close(writing)


# ---------------------------------------------------------------- bounded memory


def test_memory_stays_where_it_is_over_many_calls():
    """What 20,000 calls of many shapes leave behind does not grow with 20,000 more."""
    model = Empty()
    inputs = [np.empty((n, 3)) for n in range(1, 200)]
    with Monitor(model, sample=0.05) as monitor:

        def serve():
            for at in range(20_000):
                with monitor.request():
                    model(inputs[at % len(inputs)])
            monitor.tick(monitor._minute_ends)

        serve()
        tracemalloc.start()
        try:
            serve()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    # A minute that is learned from, in bytes: 600 rows of 5 numbers, and dictionaries around it.
    assert grown < 400_000
    assert all(len(each.shapes) <= MOST_SHAPES + 1 for each in monitor.snapshot().sizes)


# ---------------------------------------------------------------- histograms


def test_a_quantile_is_right_within_half_a_bin(rng):
    values = np.exp(rng.normal(-6, 1, 5000))
    histogram = Histogram()
    for value in values:
        histogram.add(float(value))
    for share in (0.01, 0.5, 0.99):
        expected = np.quantile(values, share, method="inverted_cdf")
        assert histogram.frozen().quantile(share) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, 1e-12, 1e-6, 3600.0])
def test_every_time_has_a_bin(seconds):
    histogram = Histogram()
    histogram.add(seconds)
    assert (histogram.frozen().n, len(histogram.counts)) == (1, BINS)


def test_distributions_join_and_part():
    one, other = Histogram(), Histogram()
    one.add(0.001)
    before = one.frozen()
    one.add(0.002)
    other.add(0.5)
    assert one.frozen().since(before).n == 1
    both = Distribution.joined([one.frozen(), other.frozen()])
    assert (both.n, both.most_s) == (3, 0.5)
    assert both.sum_s == pytest.approx(0.503)


def test_nothing_has_no_quantile():
    assert Distribution().quantile(0.5) is None
    assert Distribution().mean_s is None

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.errors import ModelError, SettingError
from tinytorch.models import pytorch_capture
from tinytorch.models.pytorch_capture import capture, taken_bytes, why_not_captured

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


WAITING = "called a synchronizing CUDA operation"


def pretend_to_have_streams(monkeypatch):
    """Let a step be warmed up without a device."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(pytorch_capture, "_stream", lambda place: stream)
    monkeypatch.setattr(pytorch_capture, "_refusing_to_wait", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place=None: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda held: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place=None: None)


def on_device(*shape):
    return torch.ones(*shape, device="cuda")


# ---------------------------------------------------------------- without a device


def test_a_processor_captures_nothing():
    assert why_not_captured("cpu") == "CUDA graphs need a CUDA device, and this model is on cpu"
    with pytest.raises(SettingError, match="need a CUDA device"):
        capture(lambda: None, device="cpu")


def test_at_least_one_call_warms_up():
    with pytest.raises(SettingError, match="at least 1, got 0"):
        capture(lambda: None, device="cuda", warmups=0)


def test_nobody_counts_the_memory_of_a_processor():
    assert taken_bytes("cpu") is None


def raised(error):
    """Give an error with the trace of where it was raised."""
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("called a synchronizing CUDA operation", "it waits for the device"),
        ("CUDA error: operation not permitted when stream is capturing", "it waits for the device"),
        (
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU "
            "tensor is pinned.",
            "it copies a tensor from the CPU",
        ),
        ("capture failed: unjoined work", "does not wait for it"),
        ("a generator that is not registered", "a generator of its own"),
        ("something else\nwith many\nlines", "RuntimeError: something else"),
        ("backend='inductor' raised:\nValueError: no kernels", "ValueError: no kernels"),
    ],
)
def test_errors_are_said_in_one_line_with_the_place(text, meaning):
    said = pytorch_capture._explained(raised(RuntimeError(text)))
    assert meaning in said
    assert "(test_pytorch_capture.py:" in said
    assert "raise error" in said
    assert "\n" not in said


def test_too_little_memory_is_said():
    error = raised(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"))
    assert "too little memory for it: OutOfMemoryError: CUDA out" in pytorch_capture._explained(
        error
    )


def test_the_error_that_came_first_counts():
    def failing():
        try:
            raise ValueError("the cause")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as caught:
        failing()
    assert "ValueError: the cause" in pytorch_capture._explained(caught.value)


@pytest.mark.parametrize("others", [0, 1])
def test_waiting_is_forbidden_only_where_no_other_thread_would_be_hit(monkeypatch, others):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(threading, "active_count", lambda: 1 + others)
    with pytorch_capture._refusing_to_wait():
        assert modes == ([] if others else ["error"])
    assert modes == ([] if others else ["error", 0])


@pytest.mark.parametrize(("calls", "message"), [(2, WAITING), (1, "something else")])
def test_waiting_in_a_warm_up_is_remembered_and_the_step_finished(monkeypatch, calls, message):
    """Some code waits only while nothing is recorded; another error ends the warm-up."""
    done = []

    def step():
        done.append(1)
        if len(done) == 1:
            raise RuntimeError(message)

    pretend_to_have_streams(monkeypatch)
    if message == WAITING:
        assert WAITING in str(pytorch_capture._warm_up(step, torch.device("cpu"), 1))
    else:
        with pytest.raises(RuntimeError, match=message):
            pytorch_capture._warm_up(step, torch.device("cpu"), 1)
    assert len(done) == calls


def test_a_warm_up_that_does_not_wait_gives_nothing(monkeypatch):
    done = []
    pretend_to_have_streams(monkeypatch)
    assert pytorch_capture._warm_up(lambda: done.append(1), torch.device("cpu"), 3) is None
    assert len(done) == 3


def test_casts_are_kept_again_afterwards():
    assert torch.is_autocast_cache_enabled()
    with pytorch_capture._casting_anew():
        assert not torch.is_autocast_cache_enabled()
    assert torch.is_autocast_cache_enabled()


def test_variables_of_failed_functions_are_freed():
    def failing():
        held = nn.Linear(2, 2)
        seen.append(held.weight.data_ptr())
        raise ValueError("no")

    seen = []
    with pytest.raises(ValueError, match="no") as caught:
        failing()
    pytorch_capture._free_frames(caught.value)
    assert seen
    assert "held" not in caught.value.__traceback__.tb_next.tb_frame.f_locals


# ---------------------------------------------------------------- on a device


def device_works():
    """Tell whether the device computes, allocates, draws and records."""
    x = torch.randn(64, 64, device="cuda")
    torch.cuda.empty_cache()
    again = capture(lambda: x @ x, device="cuda")
    return torch.equal(again.replay(), again.output) and torch.isfinite(again.output).all().item()


@needs_cuda
def test_a_replay_computes_with_what_the_inputs_hold_now():
    x = on_device(3)
    captured = capture(lambda: x * 2, device="cuda")
    x.fill_(5)
    assert captured.replay().tolist() == [10, 10, 10]
    assert captured.output.tolist() == [10, 10, 10]
    assert captured.seconds > 0
    assert captured.nbytes > 0


@needs_cuda
def test_recording_computes_nothing():
    state = on_device(1)
    captured = capture(lambda: state.add_(1), device="cuda", warmups=2)
    assert state.item() == 3
    captured.replay()
    assert state.item() == 4


@needs_cuda
@pytest.mark.parametrize(
    "step",
    [
        lambda x: x * x.sum().item(),
        lambda x: x.cpu().cuda(),
        lambda x: x[x > 0],
        lambda x: x * torch.tensor(2.0, device="cuda"),
        lambda x: str(x),
        lambda x: x if x.sum() > 0 else -x,
    ],
    ids=["item", "cpu", "mask", "constant", "print", "branch"],
)
def test_waiting_for_the_device_is_named_with_its_line(step):
    x = on_device(4)
    with pytest.raises(ModelError, match=r"it waits for the device.*test_pytorch_capture\.py:"):
        capture(lambda: step(x), device="cuda")
    assert torch.cuda.get_sync_debug_mode() == 0
    assert device_works()


@needs_cuda
def test_code_that_waits_only_while_nothing_is_recorded_is_captured():
    x = on_device(4)

    def step():
        if not torch.cuda.is_current_stream_capturing() and x.sum() < 0:
            raise ValueError("no")
        return x * 2

    captured = capture(step, device="cuda")
    x.fill_(3)
    assert captured.replay().tolist() == [6, 6, 6, 6]


@needs_cuda
def test_waiting_that_is_seen_only_while_recording_leaves_a_working_device():
    x = on_device(4)

    def step():
        y = x * torch.randn(4, device="cuda")
        torch.cuda.synchronize()
        return y

    with pytest.raises(ModelError, match="cannot be captured"):
        capture(step, device="cuda")
    assert device_works()


@needs_cuda
def test_a_generator_of_its_own_is_refused():
    generator = torch.Generator("cuda").manual_seed(0)
    with pytest.raises(ModelError, match="cannot be captured"):
        capture(lambda: torch.randn(4, device="cuda", generator=generator), device="cuda")
    assert device_works()


@needs_cuda
def test_outputs_on_the_processor_are_refused():
    x = torch.ones(3)
    y = on_device(3)
    with pytest.raises(ModelError, match="returns a tensor on cpu"):
        capture(lambda: (x * 2, y * 2), device="cuda")
    assert device_works()


@needs_cuda
def test_a_step_that_uses_no_device_is_refused():
    with pytest.raises(ModelError, match="nothing to replay"):
        capture(lambda: 3, device="cuda")
    assert device_works()


@needs_cuda
def test_an_error_of_the_step_is_named():
    calls = []

    def step():
        calls.append(1)
        if len(calls) > 3:  # while it is recorded
            raise ValueError("enough")
        return on_device(2) + 1

    with pytest.raises(ModelError, match="ValueError: enough"):
        capture(step, device="cuda")
    assert device_works()


@needs_cuda
def test_too_little_memory_frees_what_was_taken():
    before = taken_bytes("cuda")

    def step():
        small = on_device(1 << 20)
        return small, torch.empty(1 << 50, device="cuda")

    with pytest.raises(ModelError, match="too little memory"):
        capture(step, device="cuda")
    assert taken_bytes("cuda") <= before + 2**22
    assert device_works()


@needs_cuda
def test_graphs_can_share_their_memory():
    # Of a size that shares no piece of memory with the small result, which has to stay.
    x = torch.randn(2048, 2048, device="cuda")
    first = capture(lambda: (x @ x).relu().sum(), device="cuda")
    second = capture(lambda: (x @ x).relu().mean(), device="cuda", pool=first.pool)
    assert second.nbytes < first.nbytes
    torch.testing.assert_close(second.replay(), (x @ x).relu().mean())
    torch.testing.assert_close(first.replay(), (x @ x).relu().sum())


@needs_cuda
def test_work_on_other_streams_and_threads_goes_on():
    x, done = torch.randn(256, 256, device="cuda"), threading.Event()
    results = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            while not done.is_set():
                results.append((torch.ones(256, 256, device="cuda") @ x).sum())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        captured = capture(lambda: x @ x, device="cuda")
    finally:
        done.set()
        thread.join()
    torch.testing.assert_close(captured.replay(), x @ x)


@needs_cuda
def test_autocast_around_it_leaves_no_dangling_weights():
    layer, x = nn.Linear(64, 64, device="cuda"), torch.randn(4, 64, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        captured = capture(lambda: layer(x), device="cuda")
        expected = layer(x)
    junk = [torch.full((64, 64), float("nan"), device="cuda", dtype=torch.bfloat16)]
    torch.testing.assert_close(captured.replay(), expected)
    assert junk

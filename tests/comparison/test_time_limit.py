import signal
import threading
import time
from contextlib import suppress

import pytest

from tinytorch.errors import MeasurementError
from tinytorch.measure import timing as module
from tinytorch.measure.timing import can_limit_time, time_limit

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timer that interrupts"
)


def spin():
    while True:
        pass


@pytest.fixture
def rings():
    """Count how often a timer of the user rings, and put everything back."""
    counted = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: counted.append(number))
    yield counted
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("hang", [spin, lambda: time.sleep(60)], ids=["spinning", "sleeping"])
def test_what_does_not_return_is_interrupted(hang):
    with (
        pytest.raises(MeasurementError, match=r"^the model did not return within 0\.05 s"),
        time_limit(0.05, "the model"),
    ):
        hang()


def swallow_exceptions():
    while True:
        with suppress(Exception):
            time.sleep(60)


def swallow_everything():
    try:
        time.sleep(60)
    except BaseException:
        return


def raise_another():
    try:
        time.sleep(60)
    except BaseException as error:
        raise ValueError("interrupted") from error


@pytest.mark.parametrize("hang", [swallow_exceptions, swallow_everything, raise_another])
def test_who_catches_the_interruption_is_given_up_all_the_same(hang):
    with pytest.raises(MeasurementError, match="x did not return within"), time_limit(0.05, "x"):
        hang()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_who_catches_the_interruption_is_interrupted_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    caught = []

    def stubborn():
        while len(caught) < 3:
            try:
                time.sleep(60)
            except BaseException as error:
                caught.append(error)

    with pytest.raises(MeasurementError, match="x did not return within"), time_limit(0.05, "x"):
        stubborn()
    assert len(caught) == 3


def test_the_interruption_never_leaves_the_block(monkeypatch):
    """A timer that rings all the time also rings while the block is entered and left."""
    monkeypatch.setattr(module, "AGAIN_S", 3e-4)
    endings = set()
    for _ in range(300):
        try:
            with time_limit(1e-4, "x"):
                time.sleep(0.001)
        except BaseException as error:
            endings.add(type(error))
    assert endings == {MeasurementError}
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_stop_of_the_user_stays_one_after_the_limit():
    def stopped():
        try:
            time.sleep(60)
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), time_limit(0.05, "x"):
        stopped()


def test_what_returns_in_time_is_left_alone():
    with time_limit(30.0, "x"):
        result = sum(range(1000))
    assert result == 499500
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_without_a_limit_no_timer_is_set():
    with time_limit(None, "x"):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_handler_of_the_user_is_back_afterwards(error, rings):
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(error), time_limit(30.0, "x"):
        raise error
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_timer_of_the_user_goes_on(rings):
    signal.setitimer(signal.ITIMER_REAL, 500.0, 70.0)
    with time_limit(30.0, "x"):
        time.sleep(0.01)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 400 < left < 500
    assert interval == 70.0


def test_a_timer_of_the_user_that_passed_meanwhile_rings_at_once(rings):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with time_limit(30.0, "x"):
        time.sleep(0.05)
        assert rings == []
    end = time.monotonic() + 10
    while not rings and time.monotonic() < end:
        time.sleep(0.001)
    assert rings == [signal.SIGALRM]


def test_the_outer_limit_holds_around_inner_ones():
    def short_steps():
        while True:
            with time_limit(30.0, "inner"):
                time.sleep(0.001)

    with pytest.raises(MeasurementError, match="outer"), time_limit(0.1, "outer"):
        short_steps()


def test_another_thread_has_no_limit_and_says_so():
    seen = []

    def work():
        seen.append(can_limit_time())
        with time_limit(0.001, "x"):
            time.sleep(0.02)
        seen.append("finished")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, "finished"]
    assert can_limit_time()


@pytest.mark.parametrize(
    ("outer", "inner", "named"), [(0.05, 30.0, "outer"), (30.0, 0.05, "inner")]
)
def test_of_two_limits_the_one_that_ends_sooner_holds(outer, inner, named):
    started = time.monotonic()
    with (
        pytest.raises(MeasurementError, match=f"{named} did not return"),
        time_limit(outer, "outer"),
        time_limit(inner, "inner"),
    ):
        time.sleep(20)
    assert time.monotonic() - started < 20
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_to_do_about_it_is_said():
    with (
        pytest.raises(MeasurementError, match="give more"),
        time_limit(0.01, "x", remedy="give more"),
    ):
        spin()

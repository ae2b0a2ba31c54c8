import os
import shutil

import pytest

from tinytorch.errors import SettingError
from tinytorch.measure import counters
from tinytorch.measure.counters import EVENTS, Counters, count_events, parse_perf_stat

WORKING = """\
# started on Mon Jan  1 00:00:00 2024

Events enabled
2000000,,cycles,500000000,100.00,,
5000000,,instructions,500000000,100.00,2.50,insn per cycle
40000,,cache-references,250000000,50.00,,
<not supported>,,LLC-loads,0,100.00,,
<not counted>,,branch-misses,0,0.00,,
1353.77,msec,task-clock,1353779000,100.00,0.013,CPUs utilized
Events disabled
"""
USER_ONLY = "700,,instructions:u,1000,100.00,,\n"
FORBIDDEN = """\
Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open access ...
"""
UNKNOWN = "event syntax error: 'nonsense'\n                     \\___ parser error\n"


def test_counted_events_have_values():
    found = parse_perf_stat(WORKING)
    assert found.values["cycles"] == 2_000_000
    assert found.values["instructions"] == 5_000_000
    assert found.instructions_per_cycle == 2.5


def test_times_are_in_seconds():
    assert parse_perf_stat(WORKING).values["task-clock"] == pytest.approx(1.35377)


def test_what_was_not_counted_has_its_reason_in_plain_words():
    found = parse_perf_stat(WORKING)
    assert found.unavailable == {
        "LLC-loads": "this processor, or the virtual machine around it, does not offer it",
        "branch-misses": "it was never on a hardware counter while the function ran",
    }


def test_counters_that_took_turns_are_noted():
    (note,) = parse_perf_stat(WORKING).notes
    assert note == "cache-references is extrapolated: counters took turns, it had 50%"


def test_events_of_user_code_alone_keep_their_name_and_say_so():
    found = parse_perf_stat(USER_ONLY)
    assert found.values == {"instructions": 700}
    assert "instructions:u" in found.notes[0]


@pytest.mark.parametrize("text", ["", "garbage", "a,b,c,d,e", "1,2"])
def test_other_text_counts_nothing(text):
    assert parse_perf_stat(text) == Counters({}, {})


def test_numbers_per_call():
    found = Counters({"cycles": 300.0}, {}, calls=3)
    assert found.per_call("cycles") == 100
    assert found.per_call("instructions") is None
    assert found.instructions_per_cycle is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FORBIDDEN, counters.NOT_PERMITTED),
        (UNKNOWN, "perf refused them all, because it does not know 'nonsense'"),
        ("Error: unknown option `control'", counters.TOO_OLD),
        ("", counters.NO_ANSWER),
    ],
)
def test_a_refusal_is_explained_for_every_event(text, reason):
    found = counters._gather(text, ("cycles", "instructions"), 1, 0.1)
    assert found.values == {}
    assert found.unavailable == {"cycles": reason, "instructions": reason}


def test_without_perf_nothing_is_counted_and_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = count_events(lambda: None, seconds=0.001)
    assert found.values == {}
    assert set(found.unavailable) == set(EVENTS)
    assert set(found.unavailable.values()) == {counters.NO_PROGRAM}


def test_a_perf_that_does_not_start_is_no_error(monkeypatch, tmp_path):
    broken = tmp_path / "perf"
    broken.write_text("not a program")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    found = count_events(lambda: None, events=("cycles",), seconds=0.001)
    assert found.unavailable["cycles"].startswith(f"{broken} cannot be started")


@pytest.fixture
def fake_perf(monkeypatch, tmp_path):
    """Give a function that puts a program instead of perf."""

    def install(script):
        program = tmp_path / "perf"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(shutil, "which", lambda name: str(program))

    return install


def test_a_perf_that_refuses_leaves_the_function_running(fake_perf):
    fake_perf("echo 'You may not have permission to collect stats.' >&2; exit 255")
    calls = []
    found = count_events(lambda: calls.append(1), events=("cycles",), seconds=0.001)
    assert found.unavailable == {"cycles": counters.NOT_PERMITTED}
    assert found.calls == len(calls) >= 1


def test_a_perf_that_counts_is_believed(fake_perf):
    fake_perf("echo '300,,cycles,1000,100.00,,' >&2")
    found = count_events(lambda: None, events=("cycles", "instructions"), seconds=0.001)
    assert found.values == {"cycles": 300}
    assert found.unavailable == {"instructions": counters.NO_ANSWER}
    assert found.seconds >= 0.001


def test_a_function_that_fails_leaves_nothing_behind(fake_perf):
    fake_perf("exit 0")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(ZeroDivisionError):
        count_events(lambda: 1 / 0, events=("cycles",))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_the_real_perf_answers_for_every_event():
    events = ("cycles", "task-clock")
    found = count_events(lambda: sum(range(1000)), events=events, seconds=0.05)
    assert set(found.values) | set(found.unavailable) == set(events)
    assert found.calls >= 1
    assert all(found.unavailable.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"events": ()}, "no events"),
        ({"events": ("--output=x",)}, "perf list"),
        ({"events": ("cycles; rm",)}, "perf list"),
        ({"seconds": 0}, "seconds=0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        count_events(lambda: None, **settings)

"""Hardware counters (cycles, instructions, cache misses) through the program ``perf``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from tinytorch.errors import SettingError
from tinytorch.measure.child_process import end_child, start_child

EVENTS = (
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "LLC-loads",
    "LLC-load-misses",
    "branch-misses",
)
PATIENCE_S = 10.0
WHOLE = 99.5
"""Percent of the time that an event must have been counted for its number to be a count."""
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

UNITS = {"msec": 1e-3, "ns": 1e-9}

NOT_SUPPORTED = "this processor, or the virtual machine around it, does not offer it"
NOT_COUNTED = "it was never on a hardware counter while the function ran"
NO_PROGRAM = "the program perf is not installed (package linux-perf or linux-tools)"
NOT_PERMITTED = f"the kernel does not allow it; lower {PARANOID} to 1, or run with CAP_PERFMON"
TOO_OLD = "this perf cannot be told when to count; it must be version 5.10 or newer"
NO_ANSWER = "perf gave no number for it"


@dataclass(frozen=True)
class Counters:
    """What the hardware counted while a function ran, all its threads together.

    `values` has the events that were counted, `unavailable` the others with the reason. Where
    counters took turns (multiplexing) a value is perf's own extrapolation, and a note says so.
    Times are in seconds.
    """

    values: Mapping[str, float]
    unavailable: Mapping[str, str]
    calls: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def per_call(self, event: str) -> float | None:
        """Return the count per call, or None if the event was not counted."""
        if event not in self.values or not self.calls:
            return None
        return self.values[event] / self.calls

    @property
    def instructions_per_cycle(self) -> float | None:
        cycles, instructions = self.values.get("cycles"), self.values.get("instructions")
        return instructions / cycles if cycles and instructions is not None else None


def count_events(
    function: Callable[[], object], *, events: Sequence[str] = EVENTS, seconds: float = 1.0
) -> Counters:
    """Call `function` for `seconds`, at least once, and count hardware events meanwhile.

    The program ``perf`` counts beside this process, in all its threads, so whatever else runs in
    the process counts too. What cannot be counted has its reason in the result; it is no error.
    """
    if not events:
        raise SettingError("no events to count; give at least one")
    for event in events:
        if not re.fullmatch(r"[\w./:=-]+", event) or event.startswith("-"):
            raise SettingError(f"event {event!r}; it must be a name that `perf list` shows")
    if not seconds > 0:
        raise SettingError(f"seconds={seconds}; it must be positive")
    program = shutil.which("perf")
    if program is None:
        return Counters({}, dict.fromkeys(events, NO_PROGRAM))
    try:
        watcher = _Watcher(program, events)
    except SettingError as error:
        return Counters({}, dict.fromkeys(events, str(error)))
    try:
        watcher.tell("enable")
        calls, spent = _call_for(function, seconds)
        watcher.tell("disable")
    finally:
        text = watcher.finish()
    return _gather(text, events, calls, spent)


class _Watcher:
    """The program perf beside this process, counting only between "enable" and "disable"."""

    def __init__(self, program: str, events: Sequence[str]) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        command = [program, "stat", "-x", ",", "-p", str(os.getpid())]
        command += ["--delay", "-1", "--control", f"fd:{orders},{answers}"]
        for event in events:
            command += ["-e", event]
        try:
            self._perf = start_child(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=(orders, answers),
                env=os.environ | {"LC_ALL": "C"},  # a comma in a number would end the field
            )
        except SettingError:
            self._close()
            raise
        finally:  # The program has its own copies; ours would hide that it has ended.
            os.close(orders)
            os.close(answers)

    def tell(self, order: str) -> None:
        """Send a command to perf, and wait until it is done or perf has ended."""
        with suppress(BrokenPipeError):
            os.write(self._orders, f"{order}\n".encode())
        os.read(self._answers, 16)

    def finish(self) -> str:
        """End perf and return what it has printed."""
        if self._perf.poll() is None:
            self._perf.send_signal(signal.SIGINT)
        try:
            return str(self._perf.communicate(timeout=PATIENCE_S)[1])
        except subprocess.TimeoutExpired:
            return ""
        finally:
            end_child(self._perf)
            self._close()

    def _close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)


def _call_for(function: Callable[[], object], seconds: float) -> tuple[int, float]:
    start, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - start < seconds:
        function()
        calls += 1
    return calls, perf_counter() - start


def _gather(text: str, events: Sequence[str], calls: int, spent: float) -> Counters:
    found = parse_perf_stat(text)
    refused = _refusal(text)
    unavailable = {
        event: found.unavailable.get(event, refused)
        for event in events
        if event not in found.values
    }
    values = {event: found.values[event] for event in events if event in found.values}
    return Counters(values, unavailable, calls, spent, found.notes)


def _refusal(text: str) -> str:
    """Return why perf refused every event."""
    lowered = text.lower()
    if "permission" in lowered or "perf_event_paranoid" in lowered or "access to" in lowered:
        return NOT_PERMITTED
    unknown = re.search(r"event syntax error: '([^']*)'", text)
    if unknown:
        return f"perf refused them all, because it does not know {unknown[1]!r}"
    return TOO_OLD if "unknown option" in lowered else NO_ANSWER


def parse_perf_stat(text: str) -> Counters:
    """Read the output of ``perf stat -x,``: one line for each event, fields between commas.

    value, unit, event, time it was counted in nanoseconds, percent of the time, derived figures
    """
    values: dict[str, float] = {}
    unavailable: dict[str, str] = {}
    notes: list[str] = []
    for line in text.splitlines():
        fields = line.split(",")
        if line.startswith("#") or len(fields) < 5:
            continue
        count, event = fields[0].strip(), fields[2].strip()
        name = re.sub(r":[ukhGHp]+$", "", event)  # perf adds :u where only user code may be counted
        if count == "<not supported>":
            unavailable[name] = NOT_SUPPORTED
        elif count == "<not counted>":
            unavailable[name] = NOT_COUNTED
        else:
            try:
                values[name] = float(count) * UNITS.get(fields[1].strip(), 1.0)
                share = float(fields[4])
            except ValueError:
                continue
            if share < WHOLE:
                notes.append(f"{name} is extrapolated: counters took turns, it had {share:.0f}%")
            if name != event:
                notes.append(f"{name}: only part of the system was counted ({event})")
    return Counters(values, unavailable, notes=tuple(notes))

"""Trials on Ray: one long-lived measuring actor per slot, which a custom resource holds.

Ray Core, not Tune: there are no intermediate results to schedule on. Ray limits nothing by itself,
so an actor pins itself; it promises nothing about how often a call runs, so calls are never retried
by Ray, and the driver, which alone writes to the store, decides what is asked again.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import stat
import tempfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tinytorch.errors import Failure, MissingPartError, SettingError, first_line
from tinytorch.measure.environment import THREAD_VARIABLES
from tinytorch.measure.executor import (
    ARRIVAL,
    LOST,
    ClosedAfterBlock,
    Slot,
    SlotReport,
    TrialCall,
    TrialResult,
    core_groups,
    cores_text,
    usable_core_numbers,
)

RESOURCE = "tinytorch_slot"
IN_FLIGHT = 2
"""Calls of a slot: the one that is measured, and the next, so that it need not wait for us."""
MOST_LOST = 5
"""A trial whose slot went away so many times while it was measured is a failure."""
MOST_ALARMS = 0.05
"""Share of A/A comparisons that may call identical code different."""
LOOK_EVERY_S, RETRY_S, ASK_AGAIN_S = 1.0, 0.5, 10.0
"""How often the cluster is looked at, and how soon a slot is asked again: one that went away, and
one that found no free cores."""
CONNECT_S = 10.0
NO_CLUSTER = (
    f"start Ray on every node with: ray start (--head | --address=...) --resources="
    f"'{{\"{RESOURCE}\": 1}}'"
)

# ---------------------------------------------------------------- on a node: the actor of a slot


class RaySlot:
    """The actor: takes a group of cores that no other slot has, and measures on it.

    `cores` is how many a slot has; 0 divides those of the node among its slots. With `may_share`
    slots beyond the cores are used all the same, for trials whose times do not matter.
    """

    def __init__(
        self, arrival: dict[str, Any], variables: dict[str, str], cores: int, may_share: bool
    ) -> None:
        self._arrival, self._variables = TrialCall.from_dict(arrival), variables
        self._cores, self._may_share = cores, may_share
        self._slot: Slot | None = None
        self._lock: Any = None

    def arrive(self) -> dict[str, Any]:
        """Take a group of cores, and return the report of the slot."""
        try:
            _take_normal_priority()
            self._slot = self._slot or self._new_slot()
        except SettingError as error:
            name = f"{platform.node()} ({_node_id()[:6]}, {os.getpid()})"
            return SlotReport(name, platform.node(), (), obstacle=str(error)).to_dict()
        return self._slot.arrive().to_dict()

    def run(self, call: dict[str, Any]) -> dict[str, Any]:
        """Answer a call in a fresh process."""
        if self._slot is None:
            raise SettingError("this slot was restarted, and has not arrived yet")
        self._slot.pin()  # and check: other code of this worker may have changed it
        return self._slot.run(TrialCall.from_dict(call)).to_dict()

    def _new_slot(self) -> Slot:
        present = usable_core_numbers()
        count = len(present) // self._cores if self._cores else _slots_of_node()
        groups = core_groups(present, count)
        self._lock, mine = claim_group(groups)
        if mine is None and not self._may_share:
            raise SettingError(f"all {len(groups)} core groups of {platform.node()} are taken")
        mine = mine or groups[os.getpid() % len(groups)]
        return Slot(
            mine,
            name=f"{platform.node()}/{cores_text(mine)} ({_node_id()[:6]}, {os.getpid()})",
            arrival=self._arrival,
            variables={**_own_variables(), **self._variables},
        )


def claim_group(groups: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...] | None]:
    """Return the first group that no other process has claimed, and the lock that holds it.

    The system releases it when this process ends, however that comes about.
    """
    import fcntl

    folder = Path(tempfile.gettempdir()) / f"tinytorch-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SettingError(f"{folder} is not a folder of this user alone; remove it")
    for group in groups:
        held: list[Any] = []
        try:
            for core in group:  # groups of another size may overlap with this one
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                held.append(os.fdopen(os.open(folder / f"core-{core}", flags, 0o600), "r+"))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held, group
        except OSError:
            for each in held:
                each.close()
    return None, None


def _take_normal_priority() -> None:
    """Run as other programs do: Ray starts workers with niceness 15, and everything disturbs those.

    Raise SettingError where that is not allowed.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        raise SettingError(
            f"Ray runs its workers with niceness {niceness}, so that anything else disturbs them; "
            "start Ray with RAY_worker_niceness=0"
        )


def _own_variables() -> dict[str, str]:
    """Return the environment without what Ray says about threads: those are the slot's cores."""
    return {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}


def _node_id() -> str:
    return str(_imported_ray().get_runtime_context().get_node_id())


def _slots_of_node() -> int:
    own = next(each for each in _imported_ray().nodes() if each["NodeID"] == _node_id())
    return max(1, int(own["Resources"].get(RESOURCE, 1)))


# ---------------------------------------------------------------- the driver's side


@dataclass
class _Actor:
    """What the driver knows of a slot. Without a report it has not arrived, or went away."""

    handle: Any
    report: SlotReport | None = None
    arriving: Any = None
    ask_at: float = 0.0
    in_flight: dict[Any, TrialCall] = field(default_factory=dict)

    @property
    def refs(self) -> list[Any]:
        return [*([self.arriving] if self.arriving is not None else []), *self.in_flight]


class RayExecutor(ClosedAfterBlock):
    """Runs trials on the slots of a Ray cluster: nodes with the resource `tinytorch_slot`.

    Without an `address` it is the cluster that runs here, or one of one slot, started for this.
    Slots come and go with their nodes. A call whose slot went away is asked again elsewhere. A slot
    that raises false alarms beside busy neighbours is not used while the machine has another.
    """

    reports = True

    def __init__(
        self,
        address: str = "",
        *,
        arrival: TrialCall | None = None,
        cores: int = 0,
        gpus: float = 0,
        may_share: bool = False,
    ) -> None:
        self._ray = _imported_ray()
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            _connect(self._ray, address)
        self._made_with = (
            (arrival or ARRIVAL).from_here().to_dict(),
            _variables_here(),
            cores,
            may_share,
        )
        self._actor = self._ray.remote(
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            num_gpus=gpus,
            resources={RESOURCE: 1},
        )(RaySlot)
        self._actors: list[_Actor] = []
        self._calls: deque[TrialCall] = deque()
        self._lost: Counter[tuple[str, str]] = Counter()
        self._failed: list[TrialResult] = []
        self._look_at = 0.0
        self.lost_slots = 0
        """How often a slot went away."""

    @property
    def slots(self) -> Sequence[SlotReport]:
        return tuple(each.report for each in self._actors if each.report is not None)

    @property
    def arriving(self) -> int:
        return sum(each.report is None and each.arriving is not None for each in self._actors)

    @property
    def running(self) -> Mapping[str, str]:
        return {
            each.report.name: next(iter(each.in_flight.values())).key
            for each in self._actors
            if each.report is not None and each.in_flight
        }

    def submit(self, call: TrialCall) -> None:
        """Add a call to those that wait for a slot."""
        self._calls.append(call)

    def wait(self, timeout_s: float | None = None) -> list[TrialResult]:
        """Return what has finished since; wait for one, or for a slot, or until time is up."""
        end = None if timeout_s is None else monotonic() + timeout_s
        while True:
            self._look_for_slots()
            self._hand_out()
            left = LOOK_EVERY_S if end is None else min(LOOK_EVERY_S, end - monotonic())
            found, has_arrived = self._received(max(0.0, left))
            is_over = end is not None and monotonic() >= end
            is_idle = end is None and not self._calls and not any(x.in_flight for x in self._actors)
            if found or has_arrived or is_over or is_idle:
                self._hand_out()
                return found

    def close(self) -> None:
        """End the actors with what they run, and leave the cluster, or end the one started here."""
        for each in self._actors:
            self._ray.kill(each.handle, no_restart=True)
        self._actors.clear()
        self._calls.clear()
        if self._is_ours:
            self._ray.shutdown()

    # ------------------------------------------------------------ slots

    def _look_for_slots(self) -> None:
        """Make an actor for each slot of the cluster that has none, and ask those who went away.

        An actor whose node is gone takes the next slot that becomes free, so none is made for it.
        """
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            alive = [each for each in self._ray.nodes() if each["Alive"]]
            total = sum(int(each["Resources"].get(RESOURCE, 0)) for each in alive)
            while len(self._actors) < total:
                self._actors.append(_Actor(self._actor.remote(*self._made_with)))
        for each in self._actors:
            is_known = each.report is not None and each.report.machine
            if not is_known and each.arriving is None and now >= each.ask_at:
                each.arriving = each.handle.arrive.remote()

    def _arrived(self, actor: _Actor, report: SlotReport) -> None:
        others = [x for x in self.slots if x.host == report.host and not x.obstacle]
        is_noisy = report.checks and report.alarms > MOST_ALARMS * report.checks
        if is_noisy and others and not report.obstacle:
            why = (
                f"{report.alarms} of {report.checks} A/A comparisons beside {len(others)} busy "
                f"slots were false alarms; {report.host} is used with fewer slots"
            )
            report = replace(report, obstacle=why)
        actor.report, actor.ask_at = report, monotonic() + ASK_AGAIN_S

    def _went_away(self, actor: _Actor, why: str = "") -> None:
        """Take back what a slot was asked; what it was measuring counts as lost once more."""
        self.lost_slots += actor.report is not None
        calls = list(actor.in_flight.values())
        actor.report, actor.arriving, actor.in_flight = None, None, {}
        actor.ask_at = monotonic() + RETRY_S
        for place, call in reversed(list(enumerate(calls))):
            self._lost[call.key, call.machine] += place == 0
            if self._lost[call.key, call.machine] < MOST_LOST:
                self._calls.appendleft(call)
                continue
            words = f"its slot went away {MOST_LOST} times while it was measured"
            failure = Failure(f"{words}: {why}" if why else words, LOST, call.key)
            self._failed.append(TrialResult(call.key, failure=failure, machine=call.machine))

    # ------------------------------------------------------------ calls

    def _hand_out(self) -> None:
        """Fill every usable slot with one call, and one more in waiting."""
        for depth in range(1, IN_FLIGHT + 1):
            for actor in self._actors:
                report = actor.report
                if report is None or report.obstacle or len(actor.in_flight) >= depth:
                    continue
                call = next((x for x in self._calls if x.machine in ("", report.machine)), None)
                if call is not None:
                    self._calls.remove(call)
                    actor.in_flight[actor.handle.run.remote(call.to_dict())] = call

    def _received(self, timeout_s: float) -> tuple[list[TrialResult], bool]:
        """Return the results that are there within some time, and whether a slot has arrived."""
        owners = {ref: actor for actor in self._actors for ref in actor.refs}
        if not owners:
            sleep(min(timeout_s, RETRY_S))
            return self._taken([]), False
        ready, rest = self._ray.wait(list(owners), num_returns=1, timeout=timeout_s)
        if rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        found, has_arrived = list[TrialResult](), False
        for ref in ready:
            actor = owners[ref]
            if ref is actor.arriving:
                has_arrived |= self._welcome(actor)
            elif ref in actor.in_flight:  # else the slot went away a moment ago
                found += self._result(actor, ref)
        return self._taken(found), has_arrived

    def _taken(self, found: list[TrialResult]) -> list[TrialResult]:
        found, self._failed = [*found, *self._failed], []
        for each in found:
            self._lost.pop((each.key, each.machine), None)
        return found

    def _welcome(self, actor: _Actor) -> bool:
        ref, actor.arriving = actor.arriving, None
        try:
            self._arrived(actor, SlotReport.from_dict(self._ray.get(ref)))
        except self._ray.exceptions.RayTaskError as error:
            why = first_line(error)
            actor.report = SlotReport(f"slot {len(self.slots)}", "", (), obstacle=why)
        except self._ray.exceptions.RayError:
            self._went_away(actor)
            return False
        return True

    def _result(self, actor: _Actor, ref: Any) -> list[TrialResult]:
        try:
            found = TrialResult.from_dict(self._ray.get(ref))
        except self._ray.exceptions.RayTaskError as error:
            # The slot's fault, not the trial's: it arrives again, or says what is in the way.
            self._went_away(actor, first_line(error))
            return []
        except self._ray.exceptions.RayError:
            self._went_away(actor)
            return []
        del actor.in_flight[ref]
        return [found]


def _imported_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPartError(
            'trials on a cluster need ray: pip install "tinytorch-perf[ray]"'
        ) from error
    return ray


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster; without an address and without one here, start one of one slot."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _check_reachable(address)
        ray.init(address=address, **quiet)
        return
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        quiet["_system_config"] = {"worker_niceness": 0}
        ray.init(address="local", resources={RESOURCE: 1}, include_dashboard=False, **quiet)


def _check_reachable(address: str) -> None:
    """Raise SettingError where no cluster answers: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.rpartition("/")[2], int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise SettingError(
            f"no Ray at {address}: {error.strerror or error}; {NO_CLUSTER}"
        ) from error


def _variables_here() -> dict[str, str]:
    """Return the variables of this process that decide how a trial is measured."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in THREAD_VARIABLES or name.startswith("TINYTORCH_")
    }

"""profile_ranks: where the steps of a distributed program spend their time, rank by rank."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from textwrap import shorten
from time import monotonic, perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist

from tinytorch.errors import MeasurementError, RecordError, SettingError, check_number, first_line
from tinytorch.scale.clocks import ClockServer, ask_clock
from tinytorch.scale.rank_file import (
    INPUT,
    LARGEST_FILE,
    SCHEMA,
    RankWriter,
    Site,
    file_of,
    read_rank,
)
from tinytorch.scale.ranks_result import RanksProfile, result_of
from tinytorch.scale.recorder_torch import Recorder

BEGIN_S, GATHER_S, GATE_S = 60.0, 15.0, 10.0
"""How long ranks wait for each other: before the steps, for files, for measurements after them."""
TURN = 3
"""Steps in a row that are recorded, or not, to tell what it costs; the first is to settle."""
FINISHED, LONGEST_REASON = "finished", 120
_profiles = 0


@dataclass(frozen=True)
class Settings:
    """What is recorded: `steps` of them after `warmup` others, and how.

    `overhead_steps` more are taken in turns with and without recording, to tell what it costs:
    turns of three steps, of which the first one is not counted. `full` keeps all
    records, however large; `ceilings` measures the bare collectives afterwards.
    A rank whose step takes longer than `stall_s` notes where it is.
    """

    steps: int = 100
    warmup: int = 5
    overhead_steps: int = 48
    folder: Path | None = None
    full: bool = False
    ceilings: bool = True
    stall_s: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 1), ("overhead_steps", 0)):
            check_number(name, getattr(self, name), least=least)
        check_number("stall_s", self.stall_s, above=0)


class RanksProfiler:
    """Records the steps of this rank; rank 0 gathers `result` at the end."""

    def __init__(self, settings: Settings) -> None:
        global _profiles
        self.settings = settings
        self.result: RanksProfile | None = None
        self.folder: Path | None = None
        self.on_result: Callable[[RanksProfile], None] | None = None
        self.say: Callable[[str], None] | None = None
        """What is told of the progress of rank 0."""
        self._key = f"tinytorch/ranks/{_profiles}"
        _profiles += 1
        self._recorder = Recorder()
        self._writer: RankWriter | None = None
        self._server: ClockServer | None = None
        self._rank, self._world = 0, 1
        self._seen = 0
        self._last: Any = None
        self._is_full = False
        self.is_over = False
        self.ended = threading.Event()
        self._written_sites = 0
        self._address = ("", 0)
        self._pairs: list[list[float]] = []
        self._is_watched: list[bool] = []
        self._own_ns: list[int] = []
        self._steps_ns: list[int] = []
        self._moment = monotonic()
        self._ended_ns = 0

    # ------------------------------------------------------------ the program's side

    def begin(self) -> None:
        """Watch this process from now on; steps are recorded after the warm-up."""
        self._recorder.on_boundary = self._boundary
        self._recorder.watch_steps()
        self._recorder.install()
        self._destroy = dist.destroy_process_group
        # What comes after the steps needs the groups; a program may end them before the block does.
        dist.destroy_process_group = self._finish_before(self._destroy)

    def _finish_before(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        def ending(*args: Any, **settings: Any) -> Any:
            self.finish(FINISHED)
            return destroy(*args, **settings)

        return ending

    def step(self) -> None:
        """Mark the end of a step; without it, steps end with those of the first optimizer."""
        self._recorder.is_marked = True
        self._boundary()

    @contextmanager
    def input(self) -> Iterator[None]:
        """Count the block as input; a DataLoader needs no such block."""
        with _running(self._recorder):
            yield

    # ------------------------------------------------------------ steps

    def _boundary(self) -> None:
        entered = perf_counter_ns()
        if self.is_over:
            return
        self._seen += 1
        self._moment = monotonic()
        number = self._seen - self.settings.warmup
        if number < 0:
            return
        if number == 0:
            self._start()
        elif number <= self.settings.steps:
            self._end_step()
        else:
            self._end_overhead_step(number - self.settings.steps - 1)
        if number < self.settings.steps:
            self._recorder.begin_step(number)
            self._own_ns.append(perf_counter_ns() - entered + self._recorder.take_own_ns())
            return
        if number == self.settings.steps:
            self._end_recording()
        following = number - self.settings.steps
        if following < self.settings.overhead_steps // (2 * TURN) * 2 * TURN:
            self._begin_overhead_step(following)
        else:
            self.finish(FINISHED)

    def _start(self) -> None:
        """Agree on a folder with the other ranks, and ask rank 0 for its time."""
        if not dist.is_initialized():
            raise SettingError(
                "there is no process group; call torch.distributed.init_process_group first, in a "
                "program that torchrun started"
            )
        store = dist.distributed_c10d.PrefixStore(self._key, _default_store())
        rank, wait = dist.get_rank(), timedelta(seconds=BEGIN_S)
        self._rank, self._world = rank, dist.get_world_size()
        if rank == 0:
            chosen = self.settings.folder
            folder = Path(chosen or tempfile.mkdtemp(prefix="tinytorch-ranks-")).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("rank[0-9]*.jsonl"):
                old.unlink()
            self._server = ClockServer()
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            store.set("place", f"{host}\n{self._server.port}\n{folder}")
        store.wait(["place"], wait)
        host, port, folder_text = store.get("place").decode().split("\n")
        self.folder, self._address = Path(folder_text), (host, int(port))
        limit = None if self.settings.full else LARGEST_FILE
        self._writer = RankWriter(self.folder, rank, limit=limit)
        self._writer.write("head", _head(rank))
        self._ask_clock()
        self._store = store
        self._progress(f"recording {self.settings.steps} steps of {self._world} ranks")
        watchdog = threading.Thread(target=self._watch_for_stalls, daemon=True)
        watchdog.start()

    def _progress(self, words: str) -> None:
        if self.say and self._rank == 0:
            self.say(words)

    def _end_step(self) -> None:
        step = self._recorder.end_step()
        self._steps_ns.append(step.end - step.begin)
        self._write_last()
        self._last = step

    def _write_last(self) -> None:
        """Write the step before, whose calls are done by now."""
        step, self._last = self._last, None
        if step is None or self._writer is None:
            return
        record = self._recorder.record_of(step)
        self._recorder.forget(step)
        self._write_sites()
        if step.number == 0 and self._recorder.layers:
            self._writer.write("layers", self._recorder.layers)
        if not self._is_full:
            self._is_full = not self._writer.write_step(record)

    def _write_sites(self) -> None:
        assert self._writer is not None
        for site in list(self._recorder.sites)[self._written_sites :]:
            self._writer.write("site", site)
            self._written_sites += 1

    def _end_recording(self) -> None:
        self._recorder.begin_step(-1)
        self._write_last()
        self._recorder.remove()

    def _ask_clock(self) -> None:
        if self._writer is None:
            return
        try:
            found = ask_clock(self._address)
        except OSError as error:
            if self._writer.nbytes and not self._seen > self.settings.warmup:
                raise MeasurementError(
                    f"rank 0 does not answer at {self._address[0]}: {first_line(error)}"
                ) from error
            return  # Rank 0 is gone; the first answer has to do.
        self._writer.write("clock", [found.at, found.offset, found.error])

    # ------------------------------------------------------------ what recording costs

    def _begin_overhead_step(self, number: int) -> None:
        """Begin a step of a turn that is watched or not, in the same random order on all ranks."""
        turn, place = divmod(number, TURN)
        if number == 0:
            rng = np.random.default_rng(0)
            firsts = rng.integers(2, size=self.settings.overhead_steps // (2 * TURN)).astype(bool)
            self._is_watched = [bool(each) for one in firsts for each in (one, not one)]
            self._pairs = [[0.0, 0.0] for _ in firsts]
        if place == 0:
            self._recorder.remove()
            if self._is_watched[turn]:
                self._recorder.install()
        self._recorder.begin_step(number if self._is_watched[turn] else -1)

    def _end_overhead_step(self, number: int) -> None:
        step = self._recorder.end_step()
        turn, place = divmod(number, TURN)
        if self._is_watched[turn]:
            self._recorder.record_of(step)
            self._recorder.forget(step)
        if place > 0:
            # From end to end: what is done between two steps is a part of the cost.
            self._pairs[turn // 2][self._is_watched[turn]] += (step.end - self._ended_ns) / 1e9
        self._ended_ns = step.end

    # ------------------------------------------------------------ the end

    def finish(self, reason: str) -> None:
        """Stop recording; the first rank that is alive gathers what there is."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self._finish(shorten(reason, LONGEST_REASON, placeholder=" ..."))
        except Exception as error:  # The program goes on: only its profile is lost.
            where = f"; {self.folder} holds what ranks wrote" if self.folder else ""
            warnings.warn(f"no profile of ranks: {first_line(error)}{where}", stacklevel=2)
        finally:
            self.ended.set()

    def _finish(self, reason: str) -> None:
        self._recorder.begin_step(-1)
        self._recorder.remove_all()
        dist.destroy_process_group = self._destroy
        if self._writer is None or self.folder is None:
            if self.say and os.environ.get("RANK", "0") == "0":
                seen, warmup = self._seen, self.settings.warmup
                self.say(
                    f"nothing recorded: {seen} steps were seen, the first {warmup} are warm-up"
                )
            return
        self._write_last()
        self._write_sites()  # some may have been seen in the overhead turns only
        if reason == FINISHED:
            self._ask_clock()
            with suppress(RuntimeError, ValueError):  # a rank, or the group, is gone by now
                self._measure_alone()
        for pair in self._pairs:
            if all(pair):
                self._writer.write("overhead", pair)
        # Of typical steps: on a busy machine a few lose the core while the recorder writes.
        share = median(self._own_ns) / median(self._steps_ns) if self._steps_ns else None
        content = {"reason": reason, "own_share": share, "is_cut": self._is_full}
        self._writer.write("end", content)
        self._writer.close()
        if all(_is_dead(file_of(self.folder, each)) for each in range(self._rank)):
            self.gather()

    def _measure_alone(self) -> None:
        """Measure bare collectives and links, where all ranks have come to their end."""
        if self._writer is None or not self.settings.ceilings or not self._are_all_here():
            return
        self._progress("recorded; measuring collectives and links alone")
        for place, seconds in measure_ceilings(self._recorder.sites, self._recorder.groups):
            self._writer.write("ceiling", [place, seconds])
        for link in measure_links():
            self._writer.write("link", link)

    def gather(self) -> None:
        """Wait for the other ranks to end, and make the result of what they have written."""
        assert self.folder is not None
        wait_for_ends(self.folder, self._world)
        self.result = result_of(self.folder)
        if self._server is not None:
            self._server.close()
        if self.on_result:
            self.on_result(self.result)

    def _are_all_here(self) -> bool:
        """Return whether every rank has come to its end; all ranks get the same answer."""
        world, end = dist.get_world_size(), monotonic() + GATE_S
        try:
            self._store.add("here", 1)
            if dist.get_rank() == 0:
                while self._store.add("here", 0) < world and monotonic() < end:
                    sleep(0.002)
                are_here = self._store.add("here", 0) >= world
                # A rank that gave up waiting has decided before.
                is_first = self._store.add("decided", 1) == 1
                self._store.set("all", "yes" if are_here and is_first else "no")
            try:
                self._store.wait(["all"], timedelta(seconds=GATE_S + 5))
            except (dist.DistError, RuntimeError):
                if self._store.add("decided", 1) == 1:
                    self._store.set("all", "no")
                self._store.wait(["all"], timedelta(seconds=5))
            return bool(self._store.get("all") == b"yes")
        except (dist.DistError, RuntimeError):
            return False

    def _watch_for_stalls(self) -> None:
        """Note once for each stall what the main thread does, from a thread of its own."""
        noted = 0.0
        while not self.is_over:
            sleep(min(1.0, self.settings.stall_s / 4))
            waited = monotonic() - self._moment
            if waited < self.settings.stall_s or noted == self._moment or self.is_over:
                continue
            noted = self._moment
            self._note_stall(waited)

    def _note_stall(self, waited: float) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = traceback.extract_stack(frame) if frame else []
        own = [each for each in stack if "/torch/" not in each.filename]
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
        calls = [each for each in self._recorder.step.calls if each.done < 0]
        sites = list(self._recorder.sites)
        waits = sites[calls[0].site].kind if calls else ""
        if self._writer is not None:
            seen = self._seen - self.settings.warmup
            content = {"step": seen, "seconds": waited, "where": where, "collective": waits}
            self._writer.write("stall", content)


@contextmanager
def _running(recorder: Recorder) -> Iterator[None]:
    begin = perf_counter_ns()
    try:
        yield
    finally:
        recorder.step.spans.append((INPUT, begin, perf_counter_ns()))


def _default_store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _head(rank: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rank": rank,
        "world": dist.get_world_size(),
        "host": platform.node(),
        "pid": os.getpid(),
        "backend": dist.get_backend(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": "cuda" if dist.get_backend() == "nccl" else "cpu",
    }


def wait_for_ends(folder: Path, world: int) -> None:
    """Wait until every rank has written its end, is no longer alive, or the time is up."""
    deadline = monotonic() + GATHER_S
    waiting = set(range(world))
    while waiting and monotonic() < deadline:
        for rank in list(waiting):
            path = file_of(folder, rank)
            if path.exists() and _is_over(path):
                waiting.discard(rank)
        if waiting:
            sleep(0.02)


def _is_over(path: Path) -> bool:
    """Return whether a rank writes nothing more: it has ended, or is dead."""
    try:
        record = read_rank(path)
    except RecordError:
        return False
    return bool(record.end) or _is_dead(path)


def _is_dead(path: Path) -> bool:
    """Return whether a rank of this machine is gone without having come to its end."""
    try:
        record = read_rank(path)
    except RecordError:
        return False
    if record.end or record.head["host"] != platform.node():
        return False
    try:
        return psutil.Process(int(record.head["pid"])).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def profile_ranks(
    *,
    steps: int = 100,
    warmup: int = 5,
    overhead_steps: int = 48,
    folder: str | os.PathLike[str] | None = None,
    full: bool = False,
    ceilings: bool = True,
    stall_s: float = 60.0,
) -> Iterator[RanksProfiler]:
    """Record the steps inside of the block on every rank; `found.result` is rank 0's afterwards."""
    chosen = None if folder is None else Path(folder)
    settings = Settings(steps, warmup, overhead_steps, chosen, full, ceilings, stall_s)
    found = RanksProfiler(settings)
    found.begin()
    try:
        yield found
    except BaseException as error:
        found.finish(first_line(error))
        raise
    found.finish(FINISHED)


# ---------------------------------------------------------------- collectives and links alone,
# on the ranks and at the sizes of a program, after its steps

REPEATS, WARM = 7, 2
MOST_SITES = 12
LINK_BYTES, LINK_TURNS = 1 << 19, 12


def _sharded(call: Callable[..., Any], is_gather: bool) -> Callable[[torch.Tensor, Any], None]:
    def run(whole: torch.Tensor, group: Any) -> None:
        size = dist.get_world_size(group)
        part = whole[: whole.numel() // size]
        whole = whole[: part.numel() * size]
        call(*((whole, part) if is_gather else (part.clone(), whole)), group=group)

    return run


def _reduce(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def _broadcast(tensor: torch.Tensor, group: Any) -> None:
    dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)


BARE: dict[str, Callable[[torch.Tensor, Any], None]] = {
    "allreduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _sharded(dist.all_gather_into_tensor, is_gather=True),
    "_allgather_base": _sharded(dist.all_gather_into_tensor, is_gather=True),
    "reduce_scatter": _sharded(dist.reduce_scatter_tensor, is_gather=False),
    "_reduce_scatter_base": _sharded(dist.reduce_scatter_tensor, is_gather=False),
}
"""Kind of a collective -> the same alone; what is not here has no ceiling."""


def measure_ceilings(
    sites: Mapping[Site, int], groups: Mapping[str, Any]
) -> Iterator[tuple[int, float]]:
    """Yield the place of a site and the seconds of its collective alone: the median of some.

    All ranks of a group have the same sites and take them in the same order. The largest come
    first; every repetition follows a barrier, since there is no step to disturb here.
    """
    chosen = sorted(
        (each for each in sites if each.kind.strip("_") in _KINDS and each.nbytes),
        key=lambda each: (-each.nbytes, each.group, each.kind, each.dtype),
    )
    # Ranks of several groups may have chosen differently: only what all of its ranks take is taken.
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [tuple(each) for each in chosen[:MOST_SITES]])
    for site in chosen[:MOST_SITES]:
        if not all(tuple(site) in everyone[rank] for rank in site.ranks):
            continue
        run, group = BARE[_KINDS[site.kind.strip("_")]], groups[site.group]
        dtype = getattr(torch, site.dtype)
        tensor = torch.zeros(site.nbytes // dtype.itemsize, dtype=dtype, device=_device(group))
        seconds = []
        for _ in range(WARM + REPEATS):
            dist.barrier(group)
            begin = perf_counter()
            run(tensor, group)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            seconds.append(perf_counter() - begin)
        yield sites[site], median(seconds[WARM:])


_KINDS = {name.strip("_"): name for name in BARE}


def _device(group: Any) -> str:
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def measure_links() -> Iterator[tuple[int, int, float]]:
    """Yield sender, receiver and bytes per second where this rank receives from a neighbour.

    One link at a time, both directions of every pair of neighbours in the ring, in turns: what
    disturbs the machine for a while meets all of them.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [(each, (each + 1) % world) for each in range(world) if world > 1]
    links = list(dict.fromkeys([*pairs, *((there, here) for here, there in pairs)]))
    data = torch.zeros(LINK_BYTES, dtype=torch.uint8, device=_device(dist.group.WORLD))
    asked = data.new_zeros(1)
    for turn in range(1 + LINK_TURNS):
        for sender, receiver in links:
            if rank == receiver:
                # What this rank sent before may still be underway, with the question behind it.
                dist.send(asked, sender)
                dist.recv(asked, sender)
                begin = perf_counter()
                dist.recv(data, sender)
                data[:1].item()  # waits for a device
                if turn:  # The first one makes the connection.
                    yield sender, receiver, LINK_BYTES / (perf_counter() - begin)
            elif rank == sender:
                dist.recv(asked, receiver)
                dist.send(asked, receiver)
                dist.send(data, receiver)

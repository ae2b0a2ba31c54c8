"""The classic competition: enter a Python object, and show the boards.

A run here is local, trusted and unverified. Nothing here is affiliated with MLCommons."""

from __future__ import annotations

import gc
import hashlib
import math
import pickle
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tinytorch.benchmarking.checks import held_ready
from tinytorch.benchmarking.examples import Examples, main_output, read_examples, torch_input
from tinytorch.benchmarking.subject import Subject, make_subject, several_inputs
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.board import Board, BoardKind, make_board
from tinytorch.competition.entry import Entry, Technique, manifest_of
from tinytorch.competition.events import (
    Event,
    find_event,
    is_text,
    public_questions,
    warm_up_questions,
)
from tinytorch.competition.judge import Bench, compete
from tinytorch.competition.judgement import CONFIDENCE, FEWEST_HEATS, Judgement
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import Round, new_round, public_file_name, write_round
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import ROUNDS, KeptRun, keep_run
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.contender import (
    BACKEND,
    Answer,
    Contender,
    ContenderError,
    Kind,
    Limits,
    Loading,
    Usage,
)
from tinytorch.competition.submissions import folder_name
from tinytorch.competition.verification import Folder, read_folder
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.files import ProgressLine
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ModelError, SettingError, first_line
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment, observe
from tinytorch.measure.interleaving import hodges_lehmann, interleave, signed_rank_interval
from tinytorch.measure.timing import Clock, fitting_clock, gc_paused
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import call_model
from tinytorch.models.zoo import load_zoo
from tinytorch.profiling.timer import check_count
from tinytorch.records.record import canonical_json
from tinytorch.showing import competition_boards

DIVISION, TIER = "open", 0.99
"""A Python object may be anything, and has to keep 99% of the reference's accuracy."""
PRECISION = "int4"
"""A Python object does not declare how precise it is, so the least precise is allowed."""
HASH_LENGTH = 12
LOCAL, LOCAL_BYTES = "local-", 8
LOCAL_NAME = re.compile(f"{LOCAL}[0-9a-f]{{{2 * LOCAL_BYTES}}}")


class TinyMLPerfCompetition:
    """Enter models of this process into the events, and see how they stand.

    Every entry runs against the reference, in turns and on questions that neither has seen, and is
    kept as unverified; with a `folder`, as a file in it, too, and the runs that are there already
    stand on the board as well. `heats` (6 or more) is how often both begin anew, with `seed` for
    their order. To be verified, make an entry with ``tinytorch compete new``.
    """

    def __init__(self, folder: str | Path | None = None, *, heats: int = 10, seed: int = 0) -> None:
        self.folder = None if folder is None else Path(folder)
        self.heats = check_count("heats", heats, at_least=1)
        if self.heats < FEWEST_HEATS:
            raise SettingError(
                f"heats={heats}; the interval of a speedup needs at least {FEWEST_HEATS}"
            )
        self.seed = seed
        self.runs: list[KeptRun] = []
        self.rounds: list[Round] = []

    def submit_entry(
        self,
        team_name: str,
        event_name: str,
        optimized_model: Any,
        optimization_description: str = "",
        github_url: str = "",
        *,
        without: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure a model in an event, store the run, and return what was found.

        The model is a layer of TinyTorch, a module of PyTorch, or anything with `forward` or that
        can be called. It is copied, and not changed. `without` has, by the name of a technique
        in small letters and dashes, the model without it: what a technique contributes is measured,
        not described. `speedup_score` is the reference's time over the model's, with the interval
        from `speedup_low` to `speedup_high`. A model that raises, gives NaN or loses accuracy is
        not ranked: `is_ranked` is false and `findings` say why.
        """
        event = find_event(event_name)
        techniques = tuple(Technique(name) for name in without or {})
        entry = Entry(
            team=team_name,
            event=event.name,
            division=DIVISION,
            tier=TIER,
            techniques=techniques,
            precision=PRECISION,
            description=optimization_description,
            url=github_url,
        )
        # Two entries are two, even where they say the same of themselves.
        told = canonical_json(manifest_of(entry)) + secrets.token_hex(16)
        entry = replace(entry, sha256=hashlib.sha256(told.encode("ascii")).hexdigest())
        line = _Line(self.heats * (1 + len(techniques)))
        fresh = new_round(f"{LOCAL}{secrets.token_hex(LOCAL_BYTES)}")
        try:
            judgement = judge_model(
                entry,
                optimized_model,
                event=event,
                questions_of=fresh,
                heats=self.heats,
                without=without,
                seed=self.seed,
                progress=line,
            )
        finally:
            line.close()
        self._keep(judgement, fresh)
        return _as_submission(judgement)

    @property
    def board(self) -> Board:
        """The board of all runs, those in the folder included."""
        there = Folder()
        if self.folder is not None and self.folder.is_dir():
            there = read_folder(self.folder)
        return make_board(
            [*there.records, *self.runs],
            rounds=[*there.rounds, *self.rounds],
            damaged=there.damaged,
        )

    def display_leaderboard(self, event: str | None = None) -> None:
        """Print who is faster than the reference, in one event or in all."""
        self._display("speed", event)

    def display_innovation_leaderboard(self, event: str | None = None) -> None:
        """Print what the declared techniques are shown to contribute."""
        self._display("innovation", event)

    def display_composite_leaderboard(self, event: str | None = None) -> None:
        """Print 70% speed and 30% innovation."""
        self._display("composite", event)

    def _display(self, kind: BoardKind, event: str | None) -> None:
        name = None if event is None else find_event(event).name
        board = self.board
        # Each entry has a separate round here, which is of no interest to a reader.
        rounds = tuple(each for each in board.rounds if not LOCAL_NAME.fullmatch(each.name))
        competition_boards().print_board(replace(board, rounds=rounds), kind, event=name)

    def _keep(self, judgement: Judgement, asked: Round) -> None:
        """Keep a run in the folder, with the round that its questions come from, or in here."""
        if self.folder is None:
            self.runs.append(KeptRun(judgement, as_record(judgement).hash))
            self.rounds.append(asked)
            return
        entry = judgement.entry
        place = self.folder / entry.event / folder_name(entry.team) / entry.sha256[:HASH_LENGTH]
        keep_run(judgement, place)
        write_round(asked, self.folder / ROUNDS / public_file_name(asked.name), reveal=True)


class _Line:
    """A line of progress for those who wait at a terminal."""

    def __init__(self, total: int) -> None:
        self._line = ProgressLine(total)
        self._text = ""

    def describe(self, text: str) -> None:
        self._text = text

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._line.advance(self._text)

    def close(self) -> None:
        self._line.close()


def _as_submission(judgement: Judgement) -> dict[str, Any]:
    """Return the classic fields of a judgement, and the judgement itself."""
    entry, score = judgement.entry, judgement.score if judgement.is_valid else None
    fatal = [each for each in judgement.findings if each.is_fatal]
    return {
        "submission_id": entry.sha256[:HASH_LENGTH],
        "timestamp": judgement.created_at,
        "team_name": entry.team,
        "event_name": entry.event,
        "optimization_description": entry.description,
        "github_url": entry.url,
        "status": "unverified",
        "is_ranked": judgement.is_valid,
        "speedup_score": score.value if score else None,
        "speedup_low": score.low if score else None,
        "speedup_high": score.high if score else None,
        "verdict": score.verdict if score else None,
        **_accuracy(judgement.accuracy),
        "findings": [f"{each.rule}: {each.seen}; {each.fix}" for each in fatal],
        "judgement": judgement,
    }


def _accuracy(found: AccuracyComparison | None) -> dict[str, Any]:
    """Return the mean scores of both sides; for text, log-likelihoods."""
    return {
        "metric": found.metric if found else None,
        "accuracy": found.candidate_mean if found else None,
        "reference_accuracy": found.baseline_mean if found else None,
    }


# ---------------------------------------------------------------- the classic way into the events:
# a model and its data, and a profiler for one model or two
#
# The name is that of a classic exercise. Nothing here is affiliated with MLCommons, and results are
# not comparable with those of its benchmarks.

MS, MB = 1e3, 2**20
RUN_S = 2e-3
"""Least duration of a timed run: many calls of a fast model, one of a slow one."""
MOST_CALLS = 20_000
TICK_S = 1e-9
"""No clock is finer, and a ratio needs a time above zero."""
INPUTS_IN_TURN = 32
"""Timed calls cycle through this number of requests, so that answers cannot be cached."""

OF_BASELINE = ("mean_latency_ms", "accuracy", "backend")
SEVERAL_THREADS = (
    "{} threads are in force, and on a busy machine they wait for each other; set "
    "OMP_NUM_THREADS=1 before Python starts"
)


class TinyMLPerf:
    """The events of the competition: real trained models on real held-out data.

    Not affiliated with MLCommons.
    """

    def load_benchmark(self, event_name: str) -> tuple[Any, dict[str, Any]]:
        """Return a fresh copy of an event's reference model, and the public data.

        ``dataset["inputs"]`` is a Tensor and ``dataset["targets"]`` an array, one row per example;
        a request of the event holds ``dataset["batch_size"]`` of them. The competition itself asks
        private questions.

        >>> model, dataset = TinyMLPerf().load_benchmark("mlp_sprint")
        >>> dataset["inputs"].shape, dataset["targets"].shape
        ((5000, 784), (5000,))
        """
        event = find_event(event_name)
        questions = public_questions(event)
        dataset = {
            "name": event.title,
            "event": event.name,
            "inputs": Tensor(questions.inputs),
            "targets": questions.targets,
            "batch_size": event.batch,
            "metric": event.metric,
            "sha256": questions.sha256,
        }
        return load_zoo(event.model).model, dataset


class CompetitionProfiler:
    """Measure a model on a dataset, in turns with a baseline if there is one."""

    def __init__(self, warmup_runs: int = 3, timing_runs: int = 10) -> None:
        self.warmup_runs = check_count("warmup_runs", warmup_runs, at_least=0)
        self.timing_runs = check_count("timing_runs", timing_runs, at_least=1)

    def benchmark_model(
        self, model: Any, dataset: Any, baseline_model: Any = None
    ) -> dict[str, Any]:
        """Measure latency, throughput, memory and accuracy, and the speedup over the baseline.

        Latencies are those of single requests of ``dataset["batch_size"]`` examples (1 without it);
        a run is as many of them as take two milliseconds. `speedup_vs_baseline` is the baseline's
        time over the model's, more than 1 being faster: both answer the same requests in turns, and
        the ratios of the runs give the interval from `speedup_low` to `speedup_high` that holds
        with 95%, from 6 runs on. Without a baseline the three are None. `accuracy` is the share of
        right answers on all examples, or None where the targets are no classes.

        Both compute as in the competition, with the backend `numpy` unless a model has its own.
        `backend` and `baseline_backend` are those that were seen to compute, None where nothing of
        TinyTorch did; `threads` is how many are in force, and `notes` are disturbances.
        """
        examples = read_examples(dataset)
        batch_size = dataset.get("batch_size", 1) if isinstance(dataset, Mapping) else 1
        given = {"model": model}
        if baseline_model is not None:
            given["baseline_model"] = baseline_model
        clock = fitting_clock()
        with ExitStack() as stack:
            sides = [
                _open_side(name, each, examples, batch_size, clock=clock, stack=stack)
                for name, each in given.items()
            ]
            notes = self._take_runs(sides)
            found = _measured(sides[0]) | {"timing_runs": self.timing_runs} | notes
            if len(sides) == 1:
                nothing = ("speedup_vs_baseline", "speedup_low", "speedup_high")
                return found | dict.fromkeys(nothing)
            baseline = _measured(sides[1])
            return (
                found
                | _speedup(sides[0], sides[1])
                | {f"baseline_{name}": baseline[name] for name in OF_BASELINE}
            )

    def _take_runs(self, sides: list[_Side]) -> dict[str, Any]:
        """Take all runs in turns; return the threads in force and the disturbances."""
        before = observe()
        with gc_paused():
            for side in sides:
                for _ in range(self.warmup_runs):
                    side.take_run()
                side.calibrate()
            rng = np.random.default_rng(0)
            for _, place in interleave(range(len(sides)), rng=rng, at_least=self.timing_runs):
                sides[place].runs.append(sides[place].take_run())
        is_computing = all(side.subject.device == "cpu" for side in sides)
        doubts = observe().doubts_since(before, is_computing=is_computing)
        threads = describe_environment().threads_in_force
        advice = (SEVERAL_THREADS.format(threads),) if doubts and threads > 1 else ()
        return {"threads": threads, "notes": (*doubts, *advice)}


@dataclass
class _Side:
    """A model that is held ready, the requests that it answers in turn, and their times."""

    subject: Subject
    requests: list[tuple[Any, ...]]
    clock: Clock
    backend: str | None
    calls: int = 1
    runs: list[list[float]] = field(default_factory=list)

    def take_run(self) -> list[float]:
        """Answer as many requests as a run has, beginning with the first; give the seconds."""
        turn = cycle(self.requests)
        return [self._timed(next(turn)) for _ in range(self.calls)]

    def calibrate(self) -> None:
        """Choose how many requests a run has, by the shortest of three."""
        seconds = min(self._timed(each) for each in (self.requests * 3)[:3])
        self.calls = max(1, min(MOST_CALLS, math.ceil(RUN_S / seconds)))

    def _timed(self, request: tuple[Any, ...]) -> float:
        seconds = self.clock.time(lambda: call_model(self.subject.model, *request), 1)
        return max(seconds, TICK_S)


def _open_side(
    name: str,
    model: Any,
    examples: Examples,
    batch_size: int,
    *,
    clock: Clock,
    stack: ExitStack,
) -> _Side:
    subject = make_subject(name, model, examples=examples, batch_size=batch_size)
    stack.enter_context(subject.ready())
    stack.enter_context(computing(subject.model))
    seen: set[str] = set()
    with recording(lambda call: seen.add(call.backend)):
        subject.check()
    requests = several_inputs(subject, examples, batch_size=batch_size, most=INPUTS_IN_TURN)
    return _Side(subject, requests, clock, " and ".join(sorted(seen)) or None)


def _measured(side: _Side) -> dict[str, Any]:
    times = np.array([seconds for run in side.runs for seconds in run])
    scored = side.subject.evaluate() if side.subject.evaluate else None
    if scored is not None and not np.isfinite(scored.scores).all():
        raise ModelError(f"{side.subject.name}: some scores are not finite; its outputs are broken")
    return {
        "mean_latency_ms": float(times.mean()) * MS,
        "std_latency_ms": float(times.std(ddof=1)) * MS if len(times) > 1 else None,
        "min_latency_ms": float(times.min()) * MS,
        "max_latency_ms": float(times.max()) * MS,
        "p90_latency_ms": float(np.percentile(times, 90)) * MS,
        "throughput": (side.subject.examples or 1) / float(times.mean()),
        "peak_memory_mb": side.subject.memory().peak_bytes / MB,
        "accuracy": scored.mean if scored and scored.metric == "accuracy" else None,
        "timed_calls": len(times),
        "backend": side.backend,
    }


def _speedup(side: _Side, baseline: _Side) -> dict[str, Any]:
    """Return the Hodges-Lehmann estimate of the paired ratios of runs, with its interval."""
    logs = [
        math.log(float(np.mean(theirs)) / float(np.mean(ours)))
        for ours, theirs in zip(side.runs, baseline.runs, strict=True)
    ]
    low, high = signed_rank_interval(logs, 1 - CONFIDENCE)
    is_known = len(logs) >= FEWEST_HEATS
    return {
        "speedup_vs_baseline": math.exp(hodges_lehmann(logs)),
        "speedup_low": math.exp(low) if is_known else None,
        "speedup_high": math.exp(high) if is_known else None,
    }


# ---------------------------------------------------------------- a model of this process that is
# asked as a contender in a separate process would be
#
# It is for trusted local runs of Python objects. Nothing is kept apart, and four measures mean a
# little less than before a judge: see :class:`LocalContender`.

PROTECTION = dict.fromkeys(
    ("files", "memory", "network", "process"),
    Protection("the model runs in the judge's own process", is_in_force=False),
)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LocalModel:
    """A model with what is known of it before it is asked.

    `pickled` is the model as a file, only where load time and size count.
    """

    name: str
    model: Any = field(repr=False)
    peak_bytes: int
    pickled: bytes = field(default=b"", repr=False)


def prepare_model(name: str, model: Any, event: Event) -> LocalModel:
    """Call a model once for its memory, and write it to a file where that is measured.

    Raises ModelError for a model that cannot do what the event asks for.
    """
    request = warm_up_questions(event).inputs[: event.batch].copy()
    examples = read_examples({"inputs": Tensor(request)})
    subject = make_subject(name, model, examples=examples, batch_size=event.batch)
    with _in_words(name, "cannot answer"), subject.ready(), computing(model):
        subject.check()
        peak_bytes = subject.memory().peak_bytes
    pickled = b""
    if is_text(event):
        with _in_words(name, "cannot be written to a file, whose size and load time count"):
            pickled = pickle.dumps(model, protocol=pickle.HIGHEST_PROTOCOL)
    return LocalModel(name, model, peak_bytes, pickled)


class LocalContender:
    """A copy of a model, asked in this process; it has the methods of a ContenderProcess.

    A request is timed from the call of the model until its answer is an array. Where the measures
    of a process cannot be separated: peak memory is that of live buffers in one call, size and
    load time are those of a pickle, and CPU time is this process's while the model was asked.
    Work that goes on after an answer is not seen.
    """

    def __init__(self, prepared: LocalModel) -> None:
        self.prepared = prepared
        self.protection = dict(PROTECTION)
        self._open, self._turn = ExitStack(), ExitStack()
        self._cpu_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._turn.close()
        self._open.close()

    def load(self) -> Loading:
        """Copy the model, so that every heat begins with a new one, and hold the copy ready."""
        given = self.prepared.model
        self.adapter: Adapter = adapter_for(given)
        notes: tuple[str, ...] = ()
        try:
            self.model = self.adapter.clone(given)
        except Exception as error:  # whatever an object may raise when it is copied
            self.model = given
            notes = (f"it cannot be copied ({first_line(error)}): all heats use the same object",)
        self._open.enter_context(held_ready(self.adapter, self.model))
        self._as_inputs = _converter(self.adapter, self.model)
        pickled = self.prepared.pickled
        seconds = _reading_s(pickled) if pickled else math.nan
        return Loading(seconds, len(pickled), notes=notes)

    def ask(self, kind: Kind, question: Array, *, count: int = 0) -> Answer:
        """Ask the model, and time its answer."""
        before = process_time()
        try:
            with computing(self.model):
                forward = kind == "forward"
                answer = self._forward(question) if forward else self._write(question, count)
        except Exception as error:
            seen = f"{self.prepared.name} cannot answer: {first_line(error)}"
            raise ContenderError("E8", seen) from error
        self._cpu_s += process_time() - before
        return answer

    def usage(self) -> Usage:
        """Return the CPU time of all requests so far, and the peak memory of one."""
        peak = self.prepared.peak_bytes
        return Usage(self._cpu_s, peak, processes=1)

    def hold(self) -> None:
        """Enable garbage collection between turns; threads of a model cannot be suspended."""
        self._turn.close()

    def release(self) -> None:
        """Collect no garbage during a turn."""
        self._turn.enter_context(gc_paused())

    def pause(self, seconds: float) -> float:
        """Return 0: within one process, background work cannot be attributed to the model."""
        return 0.0

    # ------------------------------------------------------------ asking

    def _forward(self, question: Array) -> Answer:
        inputs = self._as_inputs(question.copy())
        before = self.adapter.arrays(inputs)[0].copy()
        started = perf_counter()
        output = main_output(self.adapter, call_model(self.model, *inputs))
        seconds = perf_counter() - started
        is_intact = np.array_equal(self.adapter.arrays(inputs)[0], before)
        # A model may use the array of its answer again.
        return Answer(output.copy(), seconds, seconds, is_intact)

    def _write(self, question: Array, count: int) -> Answer:
        write = self._writer()
        prompt = question.copy()
        started = perf_counter()
        output = write(prompt, count)
        seconds = perf_counter() - started
        return Answer(output.copy(), seconds, seconds, np.array_equal(prompt, question))

    def _writer(self) -> Callable[[Array, int], Array]:
        """Return the generation function, which uses the KV cache if one is attached."""
        model = self.model
        if not isinstance(model, GPT):
            return self._write_greedily
        has_cache = "attached_cache" in vars(model)
        return lambda ids, count: model.generate(ids, count, use_cache=has_cache).data[len(ids) :]

    def _write_greedily(self, ids: Array, count: int) -> Array:
        text = list(ids)
        for _ in range(count):
            inputs = self._as_inputs(np.array(text)[None])
            logits = main_output(self.adapter, call_model(self.model, *inputs))
            text.append(int(logits[0, -1].argmax()))
        return np.array(text[len(ids) :], dtype=np.int64)


@contextmanager
def computing(model: Any) -> Iterator[None]:
    """Compute as the competition does: with its backend, and reading whole texts.

    A cache that was attached to a model would go on where the last text ended; it is for writing.
    """
    with ExitStack() as stack:
        stack.enter_context(use_backend(BACKEND))
        if isinstance(model, GPT):
            stack.enter_context(without_attached_cache(model))
        yield


def _converter(adapter: Adapter, model: Any) -> Callable[[Array], tuple[Any, ...]]:
    """Return the function that converts an array to a tensor of the model's framework."""
    if adapter.name != "pytorch":
        return lambda array: (Tensor(array),)
    layers = tuple(adapter.modules(model).values())
    return lambda array: (torch_input(array, layers),)


def _reading_s(pickled: bytes) -> float:
    """Return the seconds that unpickling the model from a file takes."""
    with tempfile.TemporaryDirectory(prefix="tinytorch-") as folder:
        path = Path(folder) / "model"
        path.write_bytes(pickled)
        started = perf_counter()
        with path.open("rb") as file:
            read = pickle.load(file)  # what this process wrote a moment ago
        seconds = perf_counter() - started
    del read
    gc.collect()
    return seconds


@contextmanager
def _in_words(name: str, what: str) -> Iterator[None]:
    """Turn any exception of a model into a ModelError."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{name} {what}: {first_line(error)}") from error


# ---------------------------------------------------------------- the local judge: a Python object
# against the reference, in this process; never verified

IN_PROCESS = (
    "a Python object in the judge's own process: not reproducible by others, and not sandboxed"
)
HERE = "a Python object"
"""What the contenders of an entry have as their code; the reference has none."""


def judge_model(
    entry: Entry,
    model: Any,
    *,
    event: Event,
    questions_of: Round,
    heats: int,
    without: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Judgement:
    """Judge a model in this process against the reference.

    Both are copied for each heat and answer the same new questions in turns. `without` has, for
    each technique of the entry, the model without it.
    """
    models = _Models(event, entry, model, without or {})
    bench = Bench(
        event,
        entry,
        heats,
        contender_without=models.contender_without,
        start=models.start,
        rng=np.random.default_rng(seed),
        progress=progress,
    )
    try:
        prepare_model("the model", model, event)
    except ModelError as error:
        refused = finding("E8", str(error), "fix the model, and enter it again")
        return compete(bench, questions_of, findings=(refused,), notes=(IN_PROCESS,))
    return compete(bench, questions_of, ablations=bool(without), notes=(IN_PROCESS,))


class _Models:
    """The models of both sides, found by the techniques that are switched on."""

    def __init__(self, event: Event, entry: Entry, model: Any, without: Mapping[str, Any]) -> None:
        self._event, self._entry = event, entry
        self._prepared: dict[Contender, LocalModel] = {}
        self._models = {Contender(event.name): ("the reference", load_zoo(event.model).model)}
        self._models[self.contender_without(None)] = ("the model", model)
        for name, rest in without.items():
            self._models[self.contender_without(name)] = (f"the model without {name}", rest)

    def contender_without(self, technique: str | None) -> Contender:
        left = tuple(each for each in self._entry.techniques if each.name != technique)
        return Contender(self._event.name, left, code=HERE)

    def start(self, contender: Contender, limits: Limits) -> LocalContender:
        """Return a contender with a copy of its model, which is prepared on first use."""
        if contender not in self._prepared:
            name, model = self._models[contender]
            try:
                self._prepared[contender] = prepare_model(name, model, self._event)
            except ModelError as error:
                raise ContenderError("E8", str(error)) from error
        return LocalContender(self._prepared[contender])

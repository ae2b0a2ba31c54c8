"""optimize: from "it is slow" to "here is why, here is what helps, here is the proof"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.model_profile import about_training_mode, profile_workload
from tinytorch.profiling.profile import Profile
from tinytorch.records.record import Record
from tinytorch.transforms.inference_mode import INFERENCE_MODE
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.advise import advise
from tinytorch.tuning.attempt import NOT_TRIED, Attempt, Settings
from tinytorch.tuning.catalog import Entry, entries_for, left_out
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.ranking import OBJECTIVE_OF
from tinytorch.tuning.records import (
    Origin,
    add_record,
    attempt_record,
    find_finished,
    optimization_record,
    origin_of,
)
from tinytorch.tuning.search import Search
from tinytorch.tuning.trying import Trials

if TYPE_CHECKING:
    from tinytorch.records.store import RecordStore

__all__ = ["optimize"]

MADE_TO_EVALUATE = (
    "baseline and candidates are in evaluation mode; the given model is in training mode, and was "
    "left so: call eval() on it for inference"
)
SHARE_OF_PROFILE, MOST_PROFILE_S = 0.05, 5.0


def optimize(
    workload: Workload | str,
    *,
    goal: str = "latency",
    max_accuracy_drop: float = 0.01,
    max_output_error: float = 0.02,
    limits: Mapping[str, float] | None = None,
    budget_s: float = 120.0,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    combinations: bool = True,
    store: RecordStore | None = None,
    resume: bool = True,
    seed: int = 0,
    target: str = "",
    progress: Progress | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Optimization:
    """Profile a workload, try what could make it better, and prove what does.

    The goal is "latency", "throughput", "memory" or "size". Every entry of the catalog that fits
    (`only` and `skip` choose) is planned and carried out on a copy, checked for outputs and
    accuracy, and only then timed against the baseline, in evaluation mode and without
    gradients. Where calls run on a device, the goal "latency" is about single calls with the device
    synchronised before and after each, and "throughput" about sustained calls. What helps alone is
    combined; what gains nothing alone while a device waits for the program is added once the best
    waits less, if that is faster. The best is checked and timed once more, since chance had a part
    in choosing it, and taken apart.

    With an `evaluate`, accuracy may drop by `max_accuracy_drop`, in the unit of the scores. Where
    the examples are too few to tell, outputs of what only rounds may be off by `max_output_error`
    of the largest; of anything else accuracy is inconclusive: it is timed, shown, and never
    recommended. Without an `evaluate`, outputs decide about everything, and nothing is tried that
    changes more than roundings. `limits` are conditions: `latency_ms`, `memory_mb`, `size_mb`.

    `budget_s` is about how long all of it takes; what is begun is finished. With a `store` each
    attempt is stored there as soon as it is known, and with `resume` those of an earlier run of the
    same model and settings on this machine are not repeated, but for the last comparison of the
    best. An interrupt ends the search and keeps what is known, from the profile on: the result says
    so. The given model is never changed. `target` is what a workload was loaded from, such as
    "file.py:factory", for the program that does it again. `on_note` hears before anything is tried
    what to know about the baseline, such as too few examples for the margin.
    """
    settings = Settings(
        goal=goal,
        max_accuracy_drop=max_accuracy_drop,
        max_output_error=max_output_error,
        limits=limits or {},
        budget_s=budget_s,
        seed=seed,
    )
    if isinstance(workload, str):
        target = target or workload
        workload = load_workload(workload)
    check_workload(workload, "an optimization")
    given, workload = workload, _for_inference(workload)
    was_training = workload is not given
    entries = entries_for(workload, goal, only=only, skip=skip)
    started = monotonic()
    profile = _profile(
        workload, budget_s=min(MOST_PROFILE_S, SHARE_OF_PROFILE * budget_s), progress=progress
    )
    # Of the profile, its share counts: what a machine can do at most is probed once, and for long.
    counted_from = max(started, monotonic() - SHARE_OF_PROFILE * budget_s)
    result = replace(
        _empty_result(workload, settings, profile),
        target=target,
        model=given.model,
        was_training=was_training,
        notes=(
            *left_out(workload, goal, only=only, skip=skip),
            *((MADE_TO_EVALUATE,) if was_training else ()),
            *_doubts(workload),
        ),
    )
    search = journal = None
    try:
        result = replace(result, advice=advise(profile, entries=entries))
        trials = Trials(workload, settings, profile=profile)
        if on_note is not None:
            for note in trials.notes:
                on_note(note)
        journal = _Journal(store, workload, trials, resume=resume, on_attempt=on_attempt)
        search = Search(
            trials,
            _most_promising_first(entries, result.advice, goal=goal),
            finished=journal.finished,
            on_attempt=journal.keep,
            progress=progress,
            started=counted_from,
        )
        search.try_singles()
        if combinations:
            search.try_combinations()
            search.try_to_keep_limits()
        search.confirm()
        search.take_apart()
    except KeyboardInterrupt:
        result = replace(result, was_interrupted=True)
    if search is None or journal is None:
        return replace(result, seconds=monotonic() - started)
    result = _with_findings(result, search)
    result = journal.close(replace(result, seconds=monotonic() - started))
    return replace(result, notes=(*result.notes, *journal.faults))


class _Journal:
    """Keeps what is finished in a store, if there is one, and finds what an earlier run kept."""

    def __init__(
        self,
        store: RecordStore | None,
        workload: Workload,
        trials: Trials,
        *,
        resume: bool,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> None:
        self._store, self._on_attempt = store, on_attempt
        self._origin: Origin | None = None
        self._faults: dict[str, None] = {}
        self.finished: Mapping[tuple[str, ...], Attempt] = {}
        if store is None:
            return
        self._origin = origin_of(
            workload, trials.settings, run=uuid4().hex, scores=trials.baseline_scores
        )
        if resume:
            self.finished = find_finished(store, self._origin)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why something is not in the store, each reason once."""
        return tuple(self._faults)

    def keep(self, attempt: Attempt) -> None:
        is_known = self.finished.get(attempt.stack) is attempt
        if self._origin is not None and not is_known and attempt.outcome != NOT_TRIED:
            self._add(attempt_record(attempt, self._origin))
        if self._on_attempt:
            self._on_attempt(attempt)

    def close(self, result: Optimization) -> Optimization:
        """Keep the result, and give it; who interrupts this loses the record and nothing else."""
        try:
            if self._origin is not None:
                self._add(optimization_record(result, self._origin))
        except KeyboardInterrupt:
            self._faults["not kept as a record: it was interrupted"] = None
            return replace(result, was_interrupted=True)
        return result

    def _add(self, record: Record) -> None:
        assert self._store is not None
        if fault := add_record(self._store, record):
            self._faults[fault] = None


def _for_inference(workload: Workload) -> Workload:
    """Return the workload with its model in evaluation mode, or itself where it is already.

    A baseline gets what everybody does for inference; what that brings is no gain of a candidate.
    """
    adapter = adapter_for(workload.model, workload.arguments)
    model = adapter.in_evaluation_mode(workload.model)
    return workload if model is workload.model else replace(workload, model=model)


def _profile(workload: Workload, *, budget_s: float, progress: Progress | None) -> Profile:
    """Profile a workload; where its model knows a shorter call with the same layers, that one."""
    generating = workload.generating
    if generating is None:
        return profile_workload(workload, budget_s=budget_s, progress=progress)
    model, note = generating.shortened_for_profile()
    found = profile_workload(replace(workload, model=model), budget_s=budget_s, progress=progress)
    return replace(found, notes=(*found.notes, note)) if note else found


def _empty_result(workload: Workload, settings: Settings, profile: Profile) -> Optimization:
    """Return what is known before anything was tried."""
    adapter = adapter_for(workload.model, workload.arguments)
    return Optimization(
        name=workload.name,
        framework=adapter.name,
        device=adapter.device(workload.model, workload.arguments),
        settings=settings,
        advice=(),
        attempts=(),
        environment=describe_environment().to_dict(),
        profile_summary=profile.to_dict(),
        profile=profile,
        model=workload.model,
    )


def _doubts(workload: Workload) -> tuple[str, ...]:
    """Return notes about the model that concern every attempt."""
    adapter = adapter_for(workload.model, workload.arguments)
    return tuple(filter(None, [about_training_mode(adapter, workload.model)]))


def _with_findings(result: Optimization, search: Search) -> Optimization:
    """Add what the search found, and the model; who interrupts making that goes without it."""
    notes = search.trials.notes
    result = replace(
        result,
        attempts=tuple(search.attempts),
        confirmations=tuple(search.confirmations),
        ablation=tuple(search.ablation),
    )
    model = result.model
    if result.chosen is not None:
        try:
            model = search.model_of(result.chosen.stack)
        except KeyboardInterrupt:
            result, model = replace(result, was_interrupted=True), None
            notes.append("the recommended model was not made again: that was interrupted")
    return replace(result, model=model, notes=(*result.notes, *notes))


def _most_promising_first(
    entries: Sequence[Entry], advice: Sequence[Advice], *, goal: str
) -> list[Entry]:
    """Sort entries: those named by advice first, in its order; the rest in catalog order.

    What is made for this class of models comes before everything else, and what takes long to
    carry out after it. Where the goal is time, inference mode is tried in any case: a result says
    what it brings alone.
    """
    first = INFERENCE_MODE if OBJECTIVE_OF[goal] == "time" else ""
    rank: dict[str, int] = {}
    for place, each in enumerate(advice):
        rank.setdefault(each.entry, place)
    return sorted(
        entries,
        key=lambda each: (
            not each.made_for,
            each.name != first,
            each.is_slow,
            rank.get(each.name, len(advice)),
        ),
    )

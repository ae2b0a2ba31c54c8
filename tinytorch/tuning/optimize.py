"""optimize: from "it is slow" to "here is why, here is what helps, here is the proof"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic, process_time
from typing import TYPE_CHECKING
from uuid import uuid4

from tinytorch.measure.ceilings import Progress, known_ceilings
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.executor import Executor
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.model_profile import about_training_mode, profile_workload
from tinytorch.profiling.profile import Profile
from tinytorch.records.record import Record
from tinytorch.transforms.inference_mode import INFERENCE_MODE
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.advise import advise
from tinytorch.tuning.at_sizes import SHARE, checked_sizes, compare_at_sizes, notes_at_sizes
from tinytorch.tuning.attempt import NOT_TRIED, Attempt, Settings
from tinytorch.tuning.catalog import Entry, entries_for, left_out
from tinytorch.tuning.elsewhere import TrialsElsewhere, for_inference
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
from tinytorch.tuning.search import SHARE_OF_SINGLES, Search
from tinytorch.tuning.trying import Trials

if TYPE_CHECKING:
    from tinytorch.records.store import RecordStore


MADE_TO_EVALUATE = (
    "baseline and candidates are in evaluation mode; the given model is in training mode, and was "
    "left so: call eval() on it for inference"
)
SHARE_OF_PROFILE, MOST_PROFILE_S = 0.05, 5.0
SMALL_BUDGET_S = 60.0
"""With less, a machine that was never measured is not measured either: that takes some 10 s."""


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
    batch: Sequence[int] = (),
    sequence: Sequence[int] = (),
    store: RecordStore | None = None,
    resume: bool = True,
    seed: int = 0,
    target: str = "",
    progress: Progress | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    executor: Executor | None = None,
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

    `batch` and `sequence` are sizes at which the recommended attempt, and up to two others, are
    compared with the baseline as well, each carried out anew for inputs of that size: a gain at one
    size need not be one at another. That takes up to 30% of the budget.

    `budget_s` is how long all of it takes, from the profile to the confirmation: it ends within a
    fifth more and the time that one attempt needs to be set up, such as compiling. What promises
    most for the time that it takes comes first, what is hopelessly slow is dropped after a few
    calls, and what does not fit any more is listed as not tried. With a `store` each
    attempt is stored there as soon as it is known, and with `resume` those of an earlier run of the
    same model and settings on this machine are not repeated, but for the last comparison of the
    best. An interrupt ends the search and keeps what is known, from the profile on: the result says
    so. The given model is never changed. `target` is what a workload was loaded from, such as
    "file.py:factory", for the program that does it again. `on_note` hears before anything is tried
    what to know about the baseline, such as too few examples for the margin.

    With an `executor` each attempt is a trial there, in a fresh process that loads the `target`;
    entries are tried alone beside each other where it has several slots. All of it is measured on
    one kind of machine, which is in the result; the recommended model is made again here.
    """
    settings = Settings(
        goal=goal,
        max_accuracy_drop=max_accuracy_drop,
        max_output_error=max_output_error,
        limits=limits or {},
        budget_s=budget_s * (1 - SHARE) if batch or sequence else budget_s,
        seed=seed,
    )
    if isinstance(workload, str):
        target = target or workload
        workload = load_workload(workload)
    start_s = process_time()  # importing and loading; more where the process did something else
    check_workload(workload, "an optimization")
    given, workload = workload, for_inference(workload)
    was_training = workload.model is not given.model
    sizes = checked_sizes(workload, batch, sequence)
    entries = entries_for(workload, goal, only=only, skip=skip)
    started = monotonic()
    profile = _profile(workload, budget_s=budget_s, progress=progress)
    result = replace(
        _empty_result(workload, settings, profile),
        target=target,
        model=given.model,
        workload=given,
        was_training=was_training,
        notes=(
            *given.notes,
            *left_out(workload, goal, only=only, skip=skip),
            *((MADE_TO_EVALUATE,) if was_training else ()),
            *_doubts(workload),
        ),
    )
    search = journal = None
    try:
        result = replace(result, advice=advise(profile, entries=entries))
        if progress is not None:
            progress.describe("outputs and scores of the baseline")
        trials = _trials(workload, settings, profile, executor, target, start_s)
        if on_note is not None:
            for note in trials.notes:
                on_note(note)
        journal = _Journal(store, workload, trials, resume=resume, on_attempt=on_attempt)
        promising = _most_promising_first(
            entries,
            result.advice,
            goal=goal,
            profile=profile,
            check_s=trials.check_s,
            budget_s=settings.budget_s,
        )
        if isinstance(trials, TrialsElsewhere):
            result = replace(result, environment=trials.environment or result.environment)
            trials.begin(
                [each for each in promising if (each.name,) not in journal.finished],
                share_s=SHARE_OF_SINGLES * settings.budget_s,
                seed=seed,
            )
        search = Search(
            trials,
            promising,
            finished=journal.finished,
            on_attempt=journal.keep,
            progress=progress,
            started=started,
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
    if sizes and not result.was_interrupted:
        result = _with_sizes(result, workload, sizes, until=started + budget_s, progress=progress)
    result = journal.close(replace(result, seconds=monotonic() - started))
    return replace(result, notes=(*result.notes, *journal.faults))


def _trials(
    workload: Workload,
    settings: Settings,
    profile: Profile,
    executor: Executor | None,
    target: str,
    start_s: float,
) -> Trials:
    if executor is None:
        trials = Trials(workload, settings, profile=profile, target=target)
        trials.start_s = start_s
        return trials
    return TrialsElsewhere(workload, settings, profile=profile, executor=executor, target=target)


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
        if isinstance(trials, TrialsElsewhere) and trials.environment:
            commit = self._origin.environment["commit"]
            environment = {**trials.environment, "commit": commit}
            self._origin = replace(self._origin, environment=environment)
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


def _profile(workload: Workload, *, budget_s: float, progress: Progress | None) -> Profile:
    """Profile a workload; where its model knows a shorter call with the same layers, that one."""
    generating, note = workload.generating, ""
    if generating is not None:
        model, note = generating.shortened_for_profile()
        workload = replace(workload, model=model)
    is_small = budget_s < SMALL_BUDGET_S
    found = profile_workload(
        workload,
        budget_s=min(MOST_PROFILE_S, SHARE_OF_PROFILE * budget_s),
        ceilings=not is_small,
        progress=progress,
    )
    if is_small:
        found = replace(found, ceilings=known_ceilings(found.device))
    return replace(found, notes=(*found.notes, note)) if note else found


def _empty_result(workload: Workload, settings: Settings, profile: Profile) -> Optimization:
    """Return what is known before anything was tried."""
    adapter = adapter_for(workload.model, workload.arguments)
    return Optimization(
        name=workload.name,
        framework=adapter.name,
        device=workload.device,
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
    plans = {x.stack[0]: x.plans for x in search.attempts if len(x.stack) == 1 and x.plans}
    advice = result.advice
    if result.profile is not None:  # by now it is known which layers an entry changes
        advice = advise(result.profile, entries=search.entries, plans=plans)
    result = replace(
        result,
        advice=advice,
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


def _with_sizes(
    result: Optimization,
    workload: Workload,
    sizes: Mapping[str, Sequence[int]],
    *,
    until: float,
    progress: Progress | None,
) -> Optimization:
    """Add what the best attempts bring at other sizes, with notes on where another one is best."""
    others = [each for each in result.ranked if each.is_acceptable and each.comparison is not None]
    try:
        found = compare_at_sizes(
            workload,
            sizes,
            recommended=result.recommended,
            others=others,
            settings=result.settings,
            until=until,
            progress=progress,
        )
    except KeyboardInterrupt:
        return replace(result, was_interrupted=True)
    name = result.recommended.name if result.recommended else ""
    notes = tuple(notes_at_sizes(found, name))
    return replace(result, at_sizes=found, notes=(*result.notes, *notes))


CHECKING_S = 1.0
"""About what an attempt takes beside its set-up, its least calls and its evaluation."""
SHARE_OF_FIRST = 0.05
"""Inference mode comes first where trying it takes no more of the budget: it is cheap, and where
calls are long it brings nothing."""


def _most_promising_first(
    entries: Sequence[Entry],
    advice: Sequence[Advice],
    *,
    goal: str,
    profile: Profile,
    check_s: float = 0.0,
    budget_s: float = math.inf,
) -> list[Entry]:
    """Sort entries by the expected gain per expected second, then as in the catalog.

    What is made for this class of models comes before everything else. Where the goal is time,
    advice says what to expect, or else `Transform.outlook`, and inference mode is tried early: a
    result says what it brings alone. Where it is bytes, what is cheap to try comes first.
    """
    is_about_time, on = OBJECTIVE_OF[goal] == "time", (profile.framework, profile.device)
    is_cheap = check_s <= SHARE_OF_FIRST * budget_s
    first = INFERENCE_MODE if is_about_time and is_cheap else ""
    gains = {x.name: x.transforms[-1].outlook(*on) if x.transforms else 1.0 for x in entries}
    if not is_about_time:
        gains = dict.fromkeys(gains, 1.1)
    for each in reversed(advice) if is_about_time else ():
        if each.predicted is not None:
            gains[each.entry] = each.predicted.value

    def worth(entry: Entry) -> float:
        return math.log(gains[entry.name]) / (CHECKING_S + check_s + entry.setup_s)

    return sorted(entries, key=lambda x: (not x.made_for, x.name != first, -worth(x)))

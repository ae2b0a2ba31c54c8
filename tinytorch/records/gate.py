"""The regression gate: did anything become slower or less accurate than it was?"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tinytorch.errors import RecordError, SettingError, TargetError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment
from tinytorch.records.gate_result import GateResult, TargetResult
from tinytorch.records.gate_targets import (
    BASELINE,
    CANDIDATE,
    GateSide,
    Measuring,
    Probed,
    against_commit,
    against_record,
    record_of,
)
from tinytorch.records.history import (
    StoredBaselines,
    baselines_in_file,
    baselines_in_store,
)
from tinytorch.records.location import store_path
from tinytorch.records.record import Record
from tinytorch.records.settings import GateSettings
from tinytorch.records.store import keep, open_store
from tinytorch.records.worktrees import Repository, checked_out, find_repository, remove_stale

HASH = re.compile(r"[0-9a-f]{4,64}")
SHORT = 12

AnyPath = str | os.PathLike[str]
OnResult = Callable[[TargetResult], None]


def run_gate(
    against: str,
    settings: GateSettings,
    *,
    candidate: str | None = None,
    baseline_python: str = "",
    folder: AnyPath = ".",
    store: AnyPath | None = None,
    save: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    on_result: OnResult | None = None,
) -> GateResult:
    """Compare the code in a folder with a baseline, target by target.

    `against` is a file of records, a revision of git, or the start of the hash of a stored record;
    the first that fits. The candidate is the folder with its uncommitted changes,
    or the revision `candidate`. Against a revision both sides run in this run, in fresh processes
    that take turns. Every result is stored as a record as soon as it is there, unless `save` is
    False, and given to `on_result`.
    """
    notes = list(_check_resolution(settings.tolerance))
    here = Path(folder).resolve()
    with ExitStack() as stack:
        gate = _Gate(against, settings, candidate, baseline_python, here, store, progress)
        found = gate.find_baseline()
        targets = gate.targets(found)
        sides = gate.enter_sides(stack, found)
        notes += gate.notes_on(found)
        gate.set_up(sides)
        probed = gate.probe(targets, sides)
        environment = describe_environment(sides[-1].folder).to_dict()
        measuring = Measuring(settings, environment, seed, progress)
        labels = (gate.label_of(found), sides[-1].label)
        run, results = f"gate-{uuid.uuid4().hex[:SHORT]}", []
        for target, seen in probed.items():
            gate.tell(target)
            result = _judge(target, found, sides, seen, measuring)
            if save and not result.is_new:
                python = seen[-1].python if settings.python else ""
                file = seen[-1].origins.file
                record = record_of(result, measuring, labels, python=python, file=file, run=run)
                result = _kept(result, record, store)
            results.append(result)
            if on_result:
                on_result(result)
            if progress:
                progress.advance()
    return GateResult(*labels, tuple(results), tuple(notes))


def _kept(result: TargetResult, record: Record, store: AnyPath | None) -> TargetResult:
    """Store a result; where that is not possible, the verdict still stands."""
    try:
        kept = keep(record, store)
    except RecordError as error:
        return replace(result, notes=(*result.notes, f"the result was not kept: {error}"))
    return result.kept_as(kept.hash, *filter(None, [kept.note]))


def _judge(
    target: str,
    found: str | StoredBaselines,
    sides: tuple[GateSide, ...],
    seen: tuple[Probed, ...],
    measuring: Measuring,
) -> TargetResult:
    if isinstance(found, StoredBaselines):
        return against_record(target, sides[-1], seen[-1], found, measuring)
    return against_commit(target, (sides[0], sides[1]), (seen[0], seen[1]), measuring)


def _check_resolution(tolerance: float) -> Iterator[str]:
    """Raise for a tolerance that this machine cannot resolve; note where that is unknown."""
    from tinytorch.comparison.self_check import known_floor

    floor = known_floor()
    if floor is None:
        yield "the minimum effect of this machine is unknown; run `tinytorch compare --selfcheck`"
    elif tolerance < floor:
        raise SettingError(
            f"tolerance {tolerance:.2%} is below {floor:.2%}, the minimum effect of this machine; "
            "increase it, or check a quieter machine again with "
            "`tinytorch compare --selfcheck`"
        )


@dataclass(frozen=True)
class _Gate:
    """What was asked for, and how to find it."""

    against: str
    settings: GateSettings
    candidate: str | None
    baseline_python: str
    here: Path
    store: AnyPath | None
    progress: Progress | None

    # ------------------------------------------------------------ the baseline

    def find_baseline(self) -> str | StoredBaselines:
        """Return the hash of a commit, or stored records."""
        path = self.here / self.against
        if path.is_file():
            return baselines_in_file(path, origin=self.against)
        looks_like_record = HASH.fullmatch(self.against.lower()) is not None
        try:
            repository = find_repository(self.here)
        except SettingError:
            if not looks_like_record:
                raise
        else:
            commit = repository.find_commit(self.against)
            if commit:
                return commit
            if not looks_like_record:
                unknown = repository.unknown(self.against)
                raise SettingError(f"{self.against!r} is no file of records, and {unknown}")
        return self._stored_record()

    def _stored_record(self) -> StoredBaselines:
        file = store_path(self.store)
        if not file.exists():
            raise SettingError(
                f"{self.against!r} is no file and no revision, and there are no records in {file}"
            )
        try:
            with open_store(file) as opened:
                return baselines_in_store(opened, self.against)
        except (RecordError, SettingError) as error:
            raise SettingError(f"{self.against!r} is no file and no revision; {error}") from error

    def label_of(self, found: str | StoredBaselines) -> str:
        if isinstance(found, StoredBaselines):
            return found.origin
        is_hash = found.startswith(self.against.lower())
        return found[:SHORT] if is_hash else f"{self.against} ({found[:SHORT]})"

    # ------------------------------------------------------------ the sides

    def enter_sides(self, stack: ExitStack, found: str | StoredBaselines) -> tuple[GateSide, ...]:
        """Return the sides to measure: both, or only the candidate if the baseline is stored."""
        if isinstance(found, StoredBaselines):
            return (self._candidate_side(stack),)
        repository = find_repository(self.here)
        remove_stale(repository)
        python = self.baseline_python or self.settings.python
        baseline = self._side_of(stack, repository, found, BASELINE, self.label_of(found), python)
        return baseline, self._candidate_side(stack)

    def _candidate_side(self, stack: ExitStack) -> GateSide:
        python, timeout_s = self.settings.python, self.settings.timeout_s
        try:
            repository = find_repository(self.here)
        except SettingError:
            if self.candidate:
                raise
            label = f"the code in {self.here}"
            return GateSide(CANDIDATE, label, self.here, python=python, timeout_s=timeout_s)
        if self.candidate is None:
            top, label = repository.top, _label_of_tree(repository)
            return GateSide(CANDIDATE, label, self.here, top, top, python, timeout_s)
        commit = repository.find_commit(self.candidate)
        if commit is None:
            raise SettingError(repository.unknown(self.candidate))
        label = f"{self.candidate} ({commit[:SHORT]})"
        return self._side_of(stack, repository, commit, CANDIDATE, label, python)

    def _side_of(
        self,
        stack: ExitStack,
        repository: Repository,
        commit: str,
        name: str,
        label: str,
        python: str,
    ) -> GateSide:
        self.tell(f"checking out {label}")
        tree = stack.enter_context(checked_out(repository, commit))
        folder = tree / repository.prefix
        # A commit without this folder has none of its targets; let that be found out in its place.
        folder.mkdir(parents=True, exist_ok=True)
        timeout_s = self.settings.timeout_s
        return GateSide(name, label, folder, tree, repository.top, python, timeout_s)

    def set_up(self, sides: tuple[GateSide, ...]) -> None:
        """Prepare the folder of each side as the settings say."""
        for side in sides:
            if self.settings.setup:
                self.tell(f"{side.name}: {self.settings.setup}")
                side.set_up(self.settings.setup)

    def notes_on(self, found: str | StoredBaselines) -> tuple[str, ...]:
        """Return notes about the two sides."""
        if isinstance(found, StoredBaselines):
            return found.notes
        repository = find_repository(self.here)
        if self.candidate is not None:
            is_same = repository.find_commit(self.candidate) == found
        else:
            is_same = repository.head == found and not repository.has_changes
        notes = ["both sides are the same commit: any difference is noise"] if is_same else []
        changed = repository.changed_submodules
        if changed:
            where = "part of the candidate" if self.candidate is None else "on neither side"
            notes.append(f"submodules with changes ({', '.join(changed)}): {where}")
        return tuple(notes)

    # ------------------------------------------------------------ the targets

    def targets(self, found: str | StoredBaselines) -> tuple[str, ...]:
        chosen = self.settings.targets
        if not chosen and isinstance(found, StoredBaselines):
            chosen = (found.chosen.name,) if found.chosen else found.names
        if not chosen:
            raise SettingError(
                "there is nothing to measure; name targets, or list them as `targets` in "
                "[tool.tinytorch.gate] of pyproject.toml"
            )
        return tuple(dict.fromkeys(chosen))

    def probe(
        self, targets: tuple[str, ...], sides: tuple[GateSide, ...]
    ) -> dict[str, tuple[Probed, ...]]:
        """Load every target on every side before anything is measured."""
        trees = {sides[-1].origin, *(side.top for side in sides)}
        seen = {}
        for target in targets:
            self.tell(f"{target}: loading")
            seen[target] = tuple(
                side.probe(target, others=[tree for tree in trees if tree and tree != side.top])
                for side in sides
            )
            if all(each.is_missing for each in seen[target]):
                raise TargetError(
                    f"{target} is not there, on no side; the candidate says: "
                    f"{seen[target][-1].error}"
                )
        return seen

    def tell(self, text: str) -> None:
        if self.progress:
            self.progress.describe(text)


def _label_of_tree(repository: Repository) -> str:
    head = repository.head
    if head is None:
        return "the working tree"
    changes = " and changes" if repository.has_changes else ""
    return f"the working tree ({head[:SHORT]}{changes})"

"""One target of a gate: the candidate against a commit, or against a stored record."""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison, failed_evaluation
from tinytorch.comparison.evidence import EVALUATE_FAILED
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.processes import Isolated
from tinytorch.errors import MeasurementError, ModelError, SettingError, TinyTorchError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.child_process import TIMED_OUT, ChildError, last_words, run_command
from tinytorch.measure.estimate import FASTER, SLOWER, Estimate
from tinytorch.measure.samples import Samples
from tinytorch.models.targets import is_installed, place_in_project
from tinytorch.records import history
from tinytorch.records.gate_result import TargetResult
from tinytorch.records.record import Record
from tinytorch.records.settings import GateSettings
from tinytorch.records.worktrees import python_files

# ---------------------------------------------------------------- where the code of the two sides
# of a gate comes from: a change that neither runs is no result

PACKAGE = "__init__.py"


@dataclass(frozen=True)
class Origins:
    """The files that a target was loaded from.

    `own` are those of the side's tree, relative to it, `outside` all others but the standard
    library, both by the name of the module. `file` is the target's, relative to its project.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


class _Trees:
    """The Python files of both trees, relative to them."""

    def __init__(self, tops: tuple[Path, Path]) -> None:
        self.tops = tops
        self.files = (python_files(tops[0]), python_files(tops[1]))
        self._by_tail = tuple(_by_tail(each) for each in self.files)

    def differ_in(self, file: str) -> bool:
        """Return whether any file differs between the trees."""
        one, other = (top / file for top in self.tops)
        if one.is_file() and other.is_file():
            return not filecmp.cmp(one, other, shallow=False)
        return one.is_file() or other.is_file()

    @cached_property
    def differ(self) -> bool:
        return self.files[0] != self.files[1] or any(map(self.differ_in, self.files[0]))

    def counterparts(self, side: int, module: str, imported: str) -> Iterator[str]:
        """Return the files of a side's tree that a module could have been imported from."""
        wanted = PurePosixPath(*module.split("."))
        is_package = imported.endswith(PACKAGE)
        wanted = wanted / PACKAGE if is_package else wanted.with_name(f"{wanted.name}.py")
        depth = len(wanted.parts)
        for file in self._by_tail[side].get(_tail(wanted), ()):
            parts = PurePosixPath(file).parts
            # A folder inside of a package is nothing to import from.
            outer = PurePosixPath(*parts[:-depth], PACKAGE).as_posix()
            if parts[-depth:] == wanted.parts and outer not in self.files[side]:
                yield file


def _by_tail(files: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for file in sorted(files):
        found.setdefault(_tail(PurePosixPath(file)), []).append(file)
    return found


def _tail(file: PurePosixPath) -> tuple[str, ...]:
    """Return what identifies a module: its file name, for a package also its folder."""
    return file.parts[-2:] if file.name == PACKAGE else file.parts[-1:]


def about_code(tops: tuple[Path, Path], origins: tuple[Origins, Origins]) -> tuple[str, str]:
    """Return why the sides do not run the differing code of their trees, and a note.

    Each is empty where there is nothing to say. That each side imports another installed file is
    no reason: then it has a separate environment.
    """
    trees = _Trees(tops)
    problem = _shadowed(trees, origins) or _all_from_elsewhere(trees, origins)
    imported = {*origins[0].own.values(), *origins[1].own.values()}
    if problem or not imported or any(map(trees.differ_in, imported)) or not trees.differ:
        return problem, ""
    return "", "no Python file that this target imports differs between the two sides"


def _shadowed(trees: _Trees, origins: tuple[Origins, Origins]) -> str:
    """Return a changed module of the tree that was imported from elsewhere."""
    for side in (1, 0):
        for module, imported in sorted(origins[side].outside.items()):
            other = origins[1 - side].outside.get(module)
            if not imported.endswith(".py") or other not in (None, imported):
                continue
            for file in trees.counterparts(side, module, imported):
                if trees.differ_in(file):
                    return _sentence(("baseline", "candidate")[side], module, imported, file)
    return ""


def _sentence(side: str, module: str, imported: str, file: str) -> str:
    above = len(module.split(".")) - (not file.endswith(PACKAGE))
    folder = PurePosixPath(file).parents[above]
    return (
        f"the {side} imports {module} from {imported}, and not {file} of its own tree, which "
        "differs between the two sides: the change would not be measured; put the folder "
        f"{folder} on PYTHONPATH, or give each side an environment with --setup and --python"
    )


def _all_from_elsewhere(trees: _Trees, origins: tuple[Origins, Origins]) -> str:
    runs_same = dict(origins[0].outside) == dict(origins[1].outside)
    if origins[0].own or origins[1].own or not runs_same or not trees.differ:
        return ""
    return (
        "nothing that this target imports is part of either tree, though the trees differ: both "
        "sides would run the same code; name a target of the repository, or give each side an "
        "environment with --setup and --python"
    )


# ---------------------------------------------------------------- the two sides of a gate: where
# their code is, which Python runs it, and whether it works

BASELINE, CANDIDATE = "baseline", "candidate"
SIDE_VARIABLE = "TINYTORCH_GATE_SIDE"


@dataclass(frozen=True)
class Probed:
    """What loading a target on one side showed.

    `error` is empty when it works. `is_missing` means that there is no such file, module or
    function. `foreign` are files of the other side that were imported, `origins` where all code
    came from.
    """

    error: str = ""
    is_missing: bool = False
    has_evaluate: bool = False
    python: str = ""
    foreign: tuple[str, ...] = ()
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True)
class GateSide:
    """One side: the tree of its code at `top`, and the folder in it where targets are.

    `top` is None for a folder that belongs to no repository, `origin` is the tree that people work
    in. `python` is empty for the interpreter that runs this; one with a folder in its name is
    searched in `folder`.
    """

    name: str
    label: str
    folder: Path
    top: Path | None = None
    origin: Path | None = None
    python: str = ""
    timeout_s: float = 120.0

    @property
    def interpreter(self) -> str:
        if not self.python:
            return sys.executable
        has_folder = os.path.dirname(self.python) != ""
        # Not resolved: the interpreter of a virtual environment is a link.
        return str(self.folder / self.python) if has_folder else self.python

    def isolated(self, target: str) -> Isolated:
        """Return a target that runs in fresh processes of this side."""
        return Isolated(
            target,
            python=self.interpreter,
            folder=self.folder,
            variables={"PYTHONPATH": self._python_path()},
            timeout_s=self.timeout_s,
        )

    def _python_path(self) -> str:
        """Return the import path: this tree first, before installed packages.

        Without this an editable install, which leads to the working tree, would win on both sides.
        """
        roots = [self.folder] if self.top is None else [self.folder, self.top]
        own = [place for root in roots for place in (root, root / "src") if place.is_dir()]
        given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        return os.pathsep.join(dict.fromkeys([*map(str, own), *map(self._moved, given)]))

    def _moved(self, place: str) -> str:
        """Return the corresponding path in this side's tree, for a path in the working tree."""
        path = Path(place).resolve()
        if self.top is not None and self.origin is not None and path.is_relative_to(self.origin):
            return str(self.top / path.relative_to(self.origin))
        return str(path)

    def set_up(self, command: str) -> None:
        """Run a command of the shell in the folder; raise when it fails.

        A candidate that cannot be prepared has failed; without a baseline nothing can be measured.
        """
        environment = os.environ | {SIDE_VARIABLE: self.name}
        code, output = run_command(command, folder=self.folder, environment=environment)
        if code != 0:
            kind = ModelError if self.name == CANDIDATE else MeasurementError
            said = last_words(output)
            raise kind(
                f"the setup command ended with {code} for the {self.name} "
                f"({self.label}); it said: {said or 'nothing'}"
            )

    def probe(self, target: str, *, others: Sequence[Path] = ()) -> Probed:
        """Load a target and call it once; `others` are trees that nothing may come from."""
        process = self.isolated(target).start(purpose=f"for the {self.name}")
        try:
            seen = process.ask("probe", timeout_s=self.timeout_s, target=target)
        except ChildError as error:
            if error.kind == TIMED_OUT:
                return Probed(f"it {error}; allow more with a longer timeout")
            return Probed(str(error))
        finally:
            process.close()
        return self._understood(target, seen, others)

    def _understood(self, target: str, seen: dict[str, Any], others: Sequence[Path]) -> Probed:
        origins = self._origins(target, seen["modules"])
        foreign = [
            file
            for file in origins.outside.values()
            if any(Path(file).is_relative_to(tree) for tree in others)
            and not is_installed(Path(file))
        ]
        return Probed(
            error=seen.get("error", ""),
            is_missing=seen.get("is_missing", False),
            has_evaluate=seen.get("has_evaluate", False),
            python=seen["python"],
            foreign=tuple(sorted(foreign)),
            origins=origins,
        )

    def _origins(self, target: str, modules: Mapping[str, str]) -> Origins:
        """Sort the files of imported modules, and that of the target, by whose they are."""
        place = target.rpartition(":")[0]
        files = dict(modules)
        if place.endswith(".py"):
            # The file of a target has a name that no module can have, and no other.
            target_file = self._file(place)
            files = {name: file for name, file in files.items() if file != target_file}
            files[place] = target_file
        own = {name: inside for name, file in files.items() if (inside := self._inside(file))}
        outside = {
            name: file
            for name, file in files.items()
            if name not in own and name.partition(".")[0] not in sys.stdlib_module_names
        }
        return Origins(own, outside, self._told(files.get(place, "")))

    def _told(self, file: str) -> str:
        """Return the path of a target's file, independent of day and machine."""
        if not file or is_installed(Path(file)):
            return ""
        return (self._inside(file) if self.top else "") or place_in_project(Path(file))

    def _file(self, place: str) -> str:
        return os.path.realpath(self.folder / place)

    def _inside(self, file: str) -> str:
        """Return the path of a file relative to this side's tree; "" for one outside of it."""
        root = (self.top or self.folder).resolve()
        is_own = Path(file).is_relative_to(root) and not is_installed(Path(file))
        return Path(file).relative_to(root).as_posix() if is_own else ""


# ---------------------------------------------------------------- one target of a gate: the
# candidate against a commit, or against a stored record

CANDIDATE_AGAIN = "candidate once more"


@dataclass(frozen=True)
class Measuring:
    """How a gate measures, whatever it compares with."""

    settings: GateSettings
    environment: Mapping[str, Any]
    seed: int = 0
    progress: Progress | None = None

    def compare(
        self,
        first: Isolated,
        second: Isolated,
        *,
        names: tuple[str, str],
        is_known: Callable[[Estimate], bool],
    ) -> Comparison:
        """Compare two isolated targets as the settings say."""
        return compare(
            first,
            second,
            budget_s=self.settings.budget_s,
            margin=self.settings.margin,
            names=names,
            is_known=is_known,
            seed=self.seed,
            progress=self.progress,
        )


# ---------------------------------------------------------------- against a commit


def against_commit(
    target: str,
    sides: tuple[GateSide, GateSide],
    probed: tuple[Probed, Probed],
    measuring: Measuring,
) -> TargetResult:
    """Compare two trees of code, in fresh processes that take turns."""
    tolerance = measuring.settings.tolerance
    result = _before_measuring(TargetResult(target, tolerance), sides, probed)
    if result.is_new or result.problem or result.baseline_error or result.candidate_error:
        return result
    started = perf_counter()
    try:
        found = measuring.compare(
            sides[0].isolated(target),
            sides[1].isolated(target),
            names=(BASELINE, CANDIDATE),
            is_known=lambda ratio: ratio.is_below(1 + tolerance) is not None,
        )
    except (ModelError, MeasurementError) as error:
        result = _after_failure(result, error)
        return replace(result, seconds_used=perf_counter() - started)
    broken = found.outputs.broken if found.outputs else ""
    if broken:  # what computes something else is not ranked by its speed
        return replace(
            result,
            candidate_error=f"{CANDIDATE} gives broken outputs: {broken}",
            outputs=_about_outputs(found.outputs),
            seconds_used=perf_counter() - started,
        )
    return _with_accuracy(
        replace(
            result,
            ratio=found.ratio,
            comparison=found,
            outputs=_about_outputs(found.outputs),
            has_same_outputs=found.outputs is not None and found.outputs.is_identical,
            notes=(*result.notes, *found.notes),
            seconds_used=perf_counter() - started,
        ),
        found,
        probed,
    )


def _before_measuring(
    result: TargetResult, sides: tuple[GateSide, GateSide], probed: tuple[Probed, Probed]
) -> TargetResult:
    """Return what loading the target on both sides has already decided."""
    old, new = probed
    for side, other, seen in ((sides[0], sides[1], old), (sides[1], sides[0], new)):
        if seen.foreign:
            return replace(
                result,
                problem=f"the {side.name} imports {seen.foreign[0]}, which is not part of "
                f"{side.label}: both sides would run the same code as the {other.name}, or neither "
                "its own; an editable install may be the reason (give each side an environment "
                "with --setup and --python)",
            )
    if old.is_missing and not new.error:
        return replace(result, is_new=True)
    if old.error or new.error:
        failed = [
            seen.error and f"{side} fails: {seen.error}"
            for side, seen in ((BASELINE, old), (CANDIDATE, new))
        ]
        gone = f"{CANDIDATE} does not have it any more"
        return replace(
            result,
            candidate_error=gone if new.is_missing else failed[1],
            baseline_error="" if old.is_missing else failed[0],
        )
    tops = (sides[0].top or sides[0].folder, sides[1].top or sides[1].folder)
    problem, note = about_code(tops, (old.origins, new.origins))
    return replace(result, problem=problem, notes=(note,) if note else ())


def _after_failure(result: TargetResult, error: TinyTorchError) -> TargetResult:
    """Blame the side whose failure ended a comparison."""
    if error.subject == CANDIDATE:
        return replace(result, candidate_error=str(error))
    if error.subject == BASELINE:
        return replace(result, baseline_error=str(error))
    return replace(result, problem=str(error))


def _with_accuracy(
    result: TargetResult, found: Comparison, probed: tuple[Probed, Probed]
) -> TargetResult:
    """Add what is known about accuracy; where it could be known and is not, nothing passes."""
    if found.accuracy is not None:
        return replace(result, accuracy=found.accuracy)
    had, has = (each.has_evaluate for each in probed)
    if had and has:
        if error := failed_evaluation(found):
            return replace(result, candidate_error=error)
        reason = found.not_measured.get("accuracy", "")
        return replace(result, obstacle=f"accuracy could not be compared: {reason}")
    if had:
        return replace(result, obstacle="the candidate has no evaluate any more: accuracy unknown")
    if has:
        note = "the baseline has no evaluate yet: accuracy is not compared"
        return replace(result, notes=(*result.notes, note))
    return result


def _about_outputs(found: OutputDifference | None) -> str:
    """Return a difference between outputs, or ""."""
    if found is None or found.is_identical:
        return ""
    if found.mismatch:
        return f"outputs differ: {found.mismatch}"
    if found.max_error is None:
        return f"outputs differ: {found.equal_share or 0:.2%} of the values are equal"
    relative = found.max_relative_error or 0.0
    return f"outputs differ by up to {found.max_error:.2g} ({relative:.2g} of the largest)"


# ---------------------------------------------------------------- against a record


def against_record(
    target: str,
    side: GateSide,
    probed: Probed,
    stored: history.StoredBaselines,
    measuring: Measuring,
) -> TargetResult:
    """Measure the candidate against itself, and compare its times with those of a record.

    Against itself, because that is how the record was made: in fresh processes that take turns
    with those of another commit.
    """
    tolerance = measuring.settings.tolerance
    result = TargetResult(target, tolerance)
    if probed.error:
        return replace(result, candidate_error=f"{CANDIDATE} fails: {probed.error}")
    settings = history.settings_of(probed.python if side.python else "", probed.origins.file)
    like = Record(history.KIND, target, {}, measuring.environment, settings)
    baseline, reason = stored.of(like)
    if baseline is None:
        return replace(result, obstacle=reason)
    started = perf_counter()
    isolated = side.isolated(target)
    try:
        found = measuring.compare(
            isolated,
            isolated,
            names=(CANDIDATE, CANDIDATE_AGAIN),
            is_known=lambda ratio: _is_within(ratio, tolerance / 2),
        )
    except (ModelError, MeasurementError) as error:
        result = replace(result, candidate_error=str(error))
        return replace(result, seconds_used=perf_counter() - started)
    ratio, notes = history.compare_with_record(latency_of(found), baseline)
    result = replace(
        result,
        ratio=ratio,
        comparison=found,
        notes=(f"the baseline is record {baseline.record.hash[:12]}", *notes, *_noise(found)),
        seconds_used=perf_counter() - started,
    )
    return _with_stored_accuracy(result, found, baseline.record, measuring.settings.margin)


def _is_within(ratio: Estimate, share: float) -> bool:
    return ratio.high <= 1 + share and ratio.low >= 1 / (1 + share)


def _noise(found: Comparison) -> tuple[str, ...]:
    if found.verdict not in (FASTER, SLOWER):
        return found.notes
    apart = f"{found.time_ratio - 1:+.1%}"
    return (*found.notes, f"noisy: the candidate against itself differs by {apart}")


def _with_stored_accuracy(
    result: TargetResult, found: Comparison, record: Record, margin: float
) -> TargetResult:
    if found.accuracy is None:
        reason = found.not_measured.get("accuracy")
        if reason is not None and reason.code == EVALUATE_FAILED:
            return replace(result, candidate_error=str(reason))
        if history.stored_scores(record) is not None:
            return replace(result, obstacle=f"the record has an accuracy, this run none: {reason}")
        return result
    try:
        accuracy = history.accuracy_against(record, found.accuracy, margin)
    except SettingError as error:
        return replace(result, obstacle=f"accuracy could not be compared: {error}")
    if accuracy is None:
        note = "the record has no accuracy: it is not compared"
        return replace(result, notes=(*result.notes, note))
    return replace(result, accuracy=accuracy)


# ---------------------------------------------------------------- keeping


def latency_of(found: Comparison) -> Samples:
    """Return the candidate's seconds per call, one value per process."""
    values = tuple(float(np.median(each.candidate)) for each in found.rounds)
    return Samples(history.LATENCY, values, loops=found.pace.loops[1])


def record_of(
    result: TargetResult,
    measuring: Measuring,
    labels: tuple[str, str],
    *,
    python: str = "",
    file: str = "",
    run: str = "",
) -> Record:
    """Return a result as a record, whose times can serve as a later baseline.

    `labels` name baseline and candidate; `python` is the version of an interpreter of their own,
    `file` that of the target, relative to the tree.
    """
    samples: dict[str, Samples] = {}
    if result.comparison is not None:
        samples[history.LATENCY] = latency_of(result.comparison)
        if result.comparison.baseline_name == BASELINE:
            ratios = tuple(float(np.exp(each.log_ratio)) for each in result.comparison.rounds)
            samples[history.TIME_RATIO] = Samples(history.TIME_RATIO, ratios, unit="")
    details = {**result.to_dict(), "against": labels[0], "candidate": labels[1]}
    return Record(
        kind=history.KIND,
        name=result.target,
        samples=samples,
        environment=measuring.environment,
        settings=history.settings_of(python, file),
        details=details,
        run=run,
        notes=result.notes,
    )

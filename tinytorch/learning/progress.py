"""Where a learner works: the folder of a lab, what was passed in it, and tables for instructors."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch import reading
from tinytorch.codec import Coded
from tinytorch.core.files import write_atomically
from tinytorch.errors import RecordError, SettingError, first_line
from tinytorch.learning.checking import NOT_WRITTEN, LabChecked, StepResult, check_file
from tinytorch.learning.sources import REFLECTION, existing_labs, load_lab, to_notebook, to_percent
from tinytorch.showing import Shown

if TYPE_CHECKING:  # the competition is imported only for tables: pictures and checks come quickly
    from tinytorch.competition.board_files import Cell

PROGRESS_FILE = "progress.json"


@dataclass(frozen=True)
class StepProgress(Coded):
    """What is known of a step: how its last check ended, and how many were needed.

    `missed` is the code of what was missed last, and `solution_at` when the solution was shown.
    """

    passed: bool = False
    tries: int = 0
    failed: int = 0
    missed: str = ""
    passed_at: str | None = None
    solution_at: str | None = None

    def after(self, result: StepResult, now: str) -> StepProgress:
        """Return the progress with one more check; a step that was not begun is no try."""
        code = result.missed.code if result.missed else ""
        if code == NOT_WRITTEN:
            return replace(self, passed=False, missed=code)
        return replace(
            self,
            passed=result.passed,
            tries=self.tries + 1,
            failed=self.failed + (not result.passed),
            missed=code,
            passed_at=(self.passed_at or now) if result.passed else self.passed_at,
        )


@dataclass(frozen=True)
class Progress(Coded):
    """The progress of a learner in a lab."""

    schema = 1

    lab: str
    learner: str = ""
    started_at: str = ""
    checked_at: str | None = None
    steps: Mapping[str, StepProgress] = field(default_factory=dict)

    @property
    def passed(self) -> tuple[str, ...]:
        """The steps that passed when they were last checked."""
        return tuple(name for name, each in self.steps.items() if each.passed)

    def of(self, step: str) -> StepProgress:
        return self.steps.get(step, StepProgress())

    def after(self, checked: LabChecked) -> Progress:
        """Return the progress with the results of a check."""
        now = _now()
        steps = {each.name: self.of(each.name).after(each, now) for each in checked.steps}
        return replace(self, checked_at=now, steps={**self.steps, **steps})

    def with_solution(self, step: str) -> Progress:
        """Return the progress with the solution of a step shown."""
        shown = replace(self.of(step), solution_at=self.of(step).solution_at or _now())
        return replace(self, steps={**self.steps, step: shown})

    def may_see(self, step: str) -> bool:
        """Return whether the solution may be shown: after a failed check, or once it passed.

        The model answers to the reflection may be seen once all steps have passed.
        """
        if step == REFLECTION:
            return {each.name for each in load_lab(self.lab).steps} <= set(self.passed)
        return self.of(step).failed > 0 or self.of(step).passed


@dataclass(frozen=True)
class LabOverview(Coded):
    """A lab with the steps it has, and the progress in the folder where it was started."""

    name: str
    title: str
    hours: str
    steps: tuple[str, ...]
    folder: str | None
    progress: Progress | None


@dataclass(frozen=True)
class Overview(Shown, Coded):
    """All labs with their progress."""

    labs: tuple[LabOverview, ...]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- the folder of a lab


@dataclass(frozen=True)
class WorkFolder:
    """A folder with the files of a lab: a Python file, a notebook, and the progress."""

    path: Path
    progress: Progress

    @property
    def python(self) -> Path:
        return self.path / f"{self.progress.lab}.py"

    @property
    def notebook(self) -> Path:
        return self.path / f"{self.progress.lab}.ipynb"

    @property
    def file(self) -> Path:
        """The file that the learner works in: the one that was changed, last where both were."""
        lab = load_lab(self.progress.lab).handed_out()
        as_given = {self.python: to_percent(lab), self.notebook: to_notebook(lab)}
        there = [each for each in as_given if each.is_file()]
        if not there:
            raise SettingError(f"{self.path} has neither {self.python.name} nor a notebook")
        changed = [each for each in there if each.read_bytes() != as_given[each].encode()]
        return max(changed or there[:1], key=lambda each: each.stat().st_mtime)

    def save(self, progress: Progress) -> WorkFolder:
        """Write the progress and return the folder with it."""
        file = self.path / PROGRESS_FILE
        try:
            with write_atomically(file) as temporary:
                temporary.write_text(json.dumps(progress.to_dict(), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise SettingError(
                f"{file} cannot be written: {error.strerror or error}; your progress was not kept"
            ) from error
        return replace(self, progress=progress)


def start_lab(name: str, folder: Path, *, learner: str = "", force: bool = False) -> WorkFolder:
    """Write the files of a lab into a folder; files that are there already are never lost."""
    lab = load_lab(name).handed_out()
    work = WorkFolder(folder, Progress(name, learner, _now()))
    files = {work.python: to_percent(lab), work.notebook: to_notebook(lab)}
    existing = [each.name for each in (*files, folder / PROGRESS_FILE) if each.exists()]
    if existing and not force:
        raise SettingError(
            f"{folder} has {', '.join(existing)} already; go on there with `tinytorch learn check`,"
            " or pass --to another folder, or --force to begin anew"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in files:
            if each.exists():
                each.replace(_free_name(each))
        for path, text in files.items():
            path.write_text(text, "utf-8")
        return work.save(work.progress)
    except OSError as error:
        raise SettingError(f"{folder} cannot be written: {error.strerror or error}") from error


def _free_name(path: Path) -> Path:
    """Return a name for what was there before."""
    numbers = (path.with_name(f"{path.stem}.before-{n}{path.suffix}") for n in range(1, 10_000))
    return next(each for each in numbers if not each.exists())


def read_folder(path: Path) -> WorkFolder | None:
    """Return the folder of a lab, or None where there is no progress."""
    file = path / PROGRESS_FILE
    if not file.is_file():
        return None
    try:
        return WorkFolder(path, Progress.from_dict(reading.read_json(file)))
    except (OSError, ValueError, RecordError) as error:
        raise RecordError(
            f"{file} cannot be read: {first_line(error)}; remove it, and `tinytorch learn "
            "start LAB --force` begins anew and keeps your files under other names"
        ) from error


def find_folders(start: Path) -> dict[str, WorkFolder]:
    """Return the folders of labs at a place, in folders of it, or beside it, by lab."""
    places = [start, *_folders_in(start), *_folders_in(start.absolute().parent)]
    found: dict[str, WorkFolder] = {}
    for place in places:
        try:
            work = read_folder(place)
        except RecordError:
            if place == start:
                raise
            continue  # a file of that name that is not ours
        if work is not None:
            found.setdefault(work.progress.lab, work)
    return found


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each) for each in entries if each.is_dir())
    except OSError:
        return []


def overview(start: Path) -> Overview:
    """Return all labs, with the progress that is found at a place."""
    found = find_folders(start)
    labs = []
    for name in existing_labs():
        lab, work = load_lab(name), found.get(name)
        steps = tuple(each.name for each in lab.steps)
        folder, progress = (str(work.path), work.progress) if work else (None, None)
        labs.append(LabOverview(name, lab.title, lab.hours, steps, folder, progress))
    return Overview(tuple(labs))


# ---------------------------------------------------------------- a class: a row for each learner
# and lab, with the columns of the competition's grades first

COLUMNS = (
    *("team", "event", "points", "status", "steps", "passed", "tries", "failed"),
    *("solutions_shown", "findings", "last_run"),
)


def grades_of(folders: Iterable[Path], *, recheck: bool = False) -> list[dict[str, Cell]]:
    """Return a row for each lab below some folders, sorted by learner and lab.

    Points are the share of passed steps, of 100. Progress is what the learner's own machine has
    written; `recheck` runs the checks of what was handed in, here and now, and counts that. What
    cannot be read has a row that says so.
    """
    places = [file.parent for each in folders for file in sorted(each.rglob(PROGRESS_FILE))]
    rows = []
    for place in places:
        try:
            if (work := read_folder(place)) is not None:
                rows.append(_row(work, recheck=recheck))
        except (RecordError, SettingError) as error:
            told: dict[str, Cell] = dict.fromkeys(COLUMNS)
            told |= {"team": _folder_of_labs(place), "event": place.name, "points": 0.0}
            rows.append(told | {"status": "cannot be read", "findings": first_line(error)})
    return sorted(rows, key=lambda row: (str(row["team"]), str(row["event"])))


def _row(work: WorkFolder, *, recheck: bool) -> dict[str, Cell]:
    progress, names = work.progress, [each.name for each in load_lab(work.progress.lab).steps]
    shown = [name for name in names if progress.of(name).solution_at]
    tries, failed = (
        sum(getattr(progress.of(name), what) for name in names) for what in ("tries", "failed")
    )
    if recheck:
        progress = progress.after(check_file(work.file, progress.lab))
    passed = [name for name in names if progress.of(name).passed]
    missed = {name: progress.of(name).missed for name in names if name not in passed}
    return {
        "team": progress.learner or _folder_of_labs(work.path),
        "event": progress.lab,
        "points": round(100 * len(passed) / len(names), 1),
        "status": "checked again" if recheck else "as handed in",
        "steps": len(names),
        "passed": len(passed),
        "tries": tries,
        "failed": failed,
        "solutions_shown": ", ".join(shown),
        "findings": "; ".join(f"{name}: {code or 'not checked'}" for name, code in missed.items()),
        "last_run": progress.checked_at,
    }


def _folder_of_labs(place: Path) -> str:
    """Return the name of the folder that holds a learner's labs, where the learner has none."""
    return place.resolve().parent.name or str(place)


def grades_csv(rows: Sequence[Mapping[str, Cell]], competition: Path | None = None) -> str:
    """Write the rows as a table; those of a competition's `--grades` come below.

    Columns that only one of them has are empty in the other.
    """
    from tinytorch.competition.board_files import COLUMNS as GRADES
    from tinytorch.competition.board_files import csv_text

    if competition is None:
        return csv_text(COLUMNS, rows)
    columns = tuple(dict.fromkeys((*COLUMNS, *GRADES)))
    return csv_text(columns, [*rows, *_read_grades(competition)])


def _read_grades(path: Path) -> list[dict[str, Cell]]:
    from tinytorch.competition.board_files import COLUMNS as GRADES

    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows: list[dict[str, Cell]] = [dict(each) for each in reader]
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {first_line(error)}") from error
    if tuple(reader.fieldnames or ()) != GRADES:
        raise SettingError(f"{path} is no table of `tinytorch compete board --grades`")
    return rows

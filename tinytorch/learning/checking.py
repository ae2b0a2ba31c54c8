"""Checking a learner's file step by step, in a process of its own with limits."""

from __future__ import annotations

import io
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.codec import Coded, decode
from tinytorch.errors import SettingError, first_line
from tinytorch.learning.sources import Step, load_lab
from tinytorch.learning.work import Missed, Work, load_work
from tinytorch.measure.child_process import (
    OUT_OF_MEMORY,
    TIMED_OUT,
    Child,
    ChildError,
    import_path,
)
from tinytorch.measure.memory import fence_memory
from tinytorch.showing import Shown

Check = Callable[[Work, np.random.Generator], None]
"""A check: it raises Missed, or returns. The first line of its docstring says what it checks."""

LIMIT_S = 60.0
"""Time for one check; every one takes below a second for the reference."""
LIMIT_BYTES = 4 << 30
NOT_WRITTEN, RAISED, UNUSABLE = "not-written", "raised", "unusable"


@dataclass(frozen=True)
class CheckResult(Coded):
    """How one check ended; `code` and `words` say what was missed."""

    what: str
    passed: bool
    code: str = ""
    words: str = ""
    printed: str = ""


@dataclass(frozen=True)
class StepResult(Coded):
    """The checks of a step until the first that did not hold; `total` is how many there are."""

    also_written = ("passed",)

    name: str
    title: str
    checks: tuple[CheckResult, ...]
    total: int

    @property
    def passed(self) -> bool:
        return len(self.checks) == self.total and all(each.passed for each in self.checks)

    @property
    def missed(self) -> CheckResult | None:
        """The check that did not hold."""
        return next((each for each in self.checks if not each.passed), None)


@dataclass(frozen=True)
class LabChecked(Shown, Coded):
    """The checked steps of a learner's file; `seed` draws the same cases again."""

    lab: str
    file: str
    seed: int
    steps: tuple[StepResult, ...]

    @property
    def passed(self) -> bool:
        return all(each.passed for each in self.steps)


def checks_of(lab: str) -> Mapping[str, Sequence[Check]]:
    """Return the checks of each step of a lab."""
    found: Mapping[str, Sequence[Check]] = import_module(f"tinytorch.learning.checks.{lab}").CHECKS
    return found


def fresh_seed() -> int:
    """Return a seed that nobody can know before."""
    return secrets.randbits(31)


def what_it_checks(check: Check) -> str:
    """Return what a check says about itself, in a line."""
    text = (check.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(text.split()).rstrip(".")


# ---------------------------------------------------------------- here: asking the child


def check_file(
    path: Path,
    lab: str,
    steps: Sequence[str] = (),
    *,
    seed: int | None = None,
    limit_s: float = LIMIT_S,
    on_step: Callable[[StepResult], None] = lambda _: None,
) -> LabChecked:
    """Check steps of a lab (default: all) in a file; without a seed, the random cases are new."""
    known = {each.name: each for each in load_lab(lab).steps}
    if unknown := [each for each in steps if each not in known]:
        raise SettingError(f"{lab} has no step {unknown[0]!r}; it has {', '.join(known)}")
    seed = fresh_seed() if seed is None else seed
    found = []
    with closing(_Examiner(path, lab, seed, limit_s)) as examiner:
        for name in steps or known:
            found.append(examiner.examine(known[name]))
            on_step(found[-1])
    return LabChecked(lab, str(path), seed, tuple(found))


class _Examiner:
    """Asks a child process for one check after the other; where it ends, the next one is asked."""

    def __init__(self, path: Path, lab: str, seed: int, limit_s: float) -> None:
        self._path, self._lab, self._seed, self._limit_s = path.absolute(), lab, seed, limit_s
        self._child: Child | None = None

    def examine(self, step: Step) -> StepResult:
        checks, results = checks_of(self._lab)[step.name], []
        for number, check in enumerate(checks):
            results.append(self._ask(step.name, number, what_it_checks(check)))
            if not results[-1].passed:
                break
        return StepResult(step.name, step.title, tuple(results), len(checks))

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, step: str, number: int, what: str) -> CheckResult:
        if self._child is None:
            self._child = Child(f"{__name__}:answer", path=import_path(), purpose="for a check")
        try:
            answer = self._child.ask(
                lab=self._lab,
                step=step,
                number=number,
                path=str(self._path),
                seed=self._seed,
                timeout_s=self._limit_s,
            )
        except ChildError as error:
            self._child = None
            return CheckResult(what, False, *_about_end(error, self._limit_s))
        return decode(CheckResult, answer)


def _about_end(error: ChildError, limit_s: float) -> tuple[str, str]:
    if error.kind == TIMED_OUT:
        return "timed-out", (
            f"it was still running after {limit_s:.3g} s and was stopped; "
            "is there a loop that does not end?"
        )
    if error.kind == OUT_OF_MEMORY:
        return "out-of-memory", "it ran out of memory; how large is the largest array you make?"
    return "crashed", str(error)


# ---------------------------------------------------------------- there: running one check

_is_fenced = False


def answer(lab: str, step: str, number: int, path: str, seed: int) -> dict[str, Any]:
    """Run one check of a file; called in the child process."""
    global _is_fenced
    if not _is_fenced:
        _is_fenced = fence_memory(LIMIT_BYTES) or True
    check = checks_of(lab)[step][number]
    return run_check(check, lambda: load_work(Path(path)), seed=seed).to_dict()


def run_check(check: Check, load: Callable[[], Work], *, seed: int) -> CheckResult:
    """Run one check on what a learner wrote."""
    what, printed = what_it_checks(check), io.StringIO()
    work = None
    try:
        with redirect_stdout(printed):
            work = load()
            check(work, np.random.default_rng(seed))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # `exit()` in a function is a mistake like others
        code, words = _explained(error, work)
        return CheckResult(what, False, code, words, printed.getvalue()[-600:])
    return CheckResult(what, True)


def _explained(error: BaseException, work: Work | None) -> tuple[str, str]:
    if isinstance(error, Missed):
        return error.code, str(error)
    places = [each for each in traceback.extract_tb(error.__traceback__) if _is_learners(each)]
    place = f"{places[-1].filename}, line {places[-1].lineno}" if places else ""
    if isinstance(error, NotImplementedError):
        step = str(error).partition(":")[0]
        return NOT_WRITTEN, f"write the code of {step or 'this step'} in the place of {place}"
    said = first_line(error)
    if work is not None and isinstance(error, NameError) and error.name in work.skipped:
        return RAISED, (
            f"{said}: checks run only the imports, functions, classes and constants of your file; "
            "what a function needs has to be made inside of it, or be passed to it"
        )
    if places:
        return RAISED, f"your code raised {said} ({place})"
    return UNUSABLE, (
        f"what your code returned could not be worked with ({said}); "
        "compare it with what the docstring promises"
    )


def _is_learners(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame is of a learner's file, which is compiled under its bare name."""
    return not Path(frame.filename).is_absolute() and not frame.filename.startswith("<")

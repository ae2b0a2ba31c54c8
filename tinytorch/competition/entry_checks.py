"""What can be found against an entry before it competes, with public data alone."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from tinytorch.competition import events, techniques
from tinytorch.competition.entry import (
    PRECISIONS,
    Entry,
    EntryError,
    Technique,
    entry_files,
    shown,
)
from tinytorch.competition.heats import WRITTEN, is_written_text
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.sandbox.building import SIZE_OF_CODE
from tinytorch.competition.sandbox.contender import (
    BACKEND,
    USUAL_LIMITS,
    Contender,
    ContenderError,
    Limits,
)
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import KEY, OPTIMIZER_PREFIX, read_arrays
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import Array as BackendsArray
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.zoo import WEIGHTS, load_zoo
from tinytorch.tuning.catalog import CATALOG

# ---------------------------------------------------------------- what can be said about the code
# of an entry by reading it; it is never run here

ALLOWED_PACKAGES = frozenset({"tinytorch", "numpy"})
LOADERS = frozenset({"ctypes", "importlib", "pkgutil", "runpy", "zipimport"})
"""Modules of the standard library that load what no import names."""
LOADING_CALLS = frozenset({"__import__", "eval", "exec", "compile"})
COMPILED_FILES = frozenset({".so", ".pyd", ".dll", ".dylib", ".pyc"})


def check_code(entry: Entry) -> tuple[Finding, ...]:
    """Check the code of an entry by parsing it: rule E8, and for learners E7."""
    if entry.code is None:
        return ()
    try:
        names = entry_files(entry)
    except EntryError as error:
        return (error.finding,)
    trees: dict[str, ast.Module] = {}
    findings: list[Finding] = []
    for name in names:
        if name.endswith(".py"):
            parsed = _parse(entry, name)
            if isinstance(parsed, Finding):
                findings.append(parsed)
            else:
                trees[name] = parsed
    findings += _check_function(entry.code, trees)
    if entry.division == "learner":
        findings += _check_learner(names, trees)
    return tuple(findings)


def _parse(entry: Entry, name: str) -> ast.Module | Finding:
    try:
        source = (entry.folder / name).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of other people's code
            return ast.parse(source)
    except SyntaxError as error:
        return finding("E8", f"{name}, line {error.lineno}: {error.msg}", "fix the code")
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        return finding("E8", f"{name} cannot be read as Python: {error}", "fix the code")


def _check_function(code: str, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    file, _, function = code.rpartition(":")
    if file in trees and function not in _bound_names(trees[file]):
        yield finding(
            "E8",
            f"{file} defines no {function}",
            f"write def {function}(reference, techniques): ...",
        )


def _bound_names(tree: ast.Module) -> set[str]:
    """Return all names that a file binds, at any depth."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found.add(asname or name)
    return found


# ---------------------------------------------------------------- learners


def _check_learner(names: tuple[str, ...], trees: dict[str, ast.Module]) -> Iterator[Finding]:
    own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in trees}
    for name in names:
        if PurePosixPath(name).suffix in COMPILED_FILES:
            yield finding("E7", f"{name} is compiled", "leave it out")
    for name, tree in trees.items():
        for line, what in _loaded(tree, own):
            yield finding("E7", f"{name}, line {line}: {what}")


def _loaded(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and description of everything that loads a package learners may not use."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                packages = [each.name.partition(".")[0] for each in aliases]
            case ast.ImportFrom(module=str(module), level=0):
                packages = [module.partition(".")[0]]
            case ast.Call(func=ast.Name(id=name)) if name in LOADING_CALLS:
                yield node.lineno, f"calls {name}, with which anything can be loaded"
                continue
            case _:
                continue
        assert isinstance(node, ast.Import | ast.ImportFrom)
        for package in packages:
            if package not in own and (told := _why_not(package)):
                yield node.lineno, told


def _why_not(package: str) -> str:
    """Return why learners may not import a package, or ""."""
    if package in LOADERS:
        return f"imports {package}, with which anything can be loaded"
    if package in ALLOWED_PACKAGES or package in sys.stdlib_module_names:
        return ""
    return f"imports {shown(package)}; learners use the standard library, NumPy and TinyTorch"


# ---------------------------------------------------------------- try an entry: build it as the
# judge does, and let it answer public questions

EXAMPLES = 500
"""At most; texts, which hold many characters, are as many as in a heat."""
PROMPTS = 3
Array = npt.NDArray[np.generic]
Start = Callable[[Contender], AbstractContextManager[ContenderProcess]]


def contender_of(entry: Entry, *, without: str | None = None) -> Contender:
    """Return the contender of an entry, optionally `without` one of its techniques.

    Techniques have their transforms written out; those of code are names that the code is told.
    """
    names = [each.name for each in entry.techniques]
    if without is not None and without not in names:
        known = ", ".join(names) or "none"
        raise SettingError(f"the entry declares no technique {without!r}; it declares {known}")
    left = tuple(each for each in entry.techniques if each.name != without)
    folder = Path(os.path.abspath(entry.folder))
    return Contender(
        entry.event,
        left if entry.code is not None else tuple(techniques.resolved(each) for each in left),
        weights=None if entry.weights is None else str(folder / entry.weights),
        code=None if entry.code is None else str(folder / entry.code),
    )


def try_entry(entry: Entry, *, start: Start = ContenderProcess) -> tuple[Finding, ...]:
    """Build an entry in a separate process and ask it some public questions.

    Whether it keeps its tier is decided on private questions; here only what is clearly lost is
    reported, as a warning. Where the entry has code, this runs it.
    """
    event = events.find_event(entry.event)
    questions = _few(events.public_questions(event), min(EXAMPLES, event.examples))
    try:
        with start(contender_of(entry)) as process:
            notes = process.load().notes
            outputs = _read(process, event, questions)
            findings = (*_check_outputs(entry, event, questions, outputs),)
            if not findings:
                findings = (*_check_texts(process, questions),)
    except ContenderError as error:
        return (finding(error.rule, str(error), "fix it, and check again"),)
    return findings + tuple(
        doubt("E8", note, "nothing to do, if that is meant")
        for note in notes
        if note != SIZE_OF_CODE  # true of all code, so nothing to fix
    )


def _few(questions: events.Questions, count: int) -> events.Questions:
    prompts = None if questions.prompts is None else questions.prompts[:PROMPTS]
    return events.Questions(questions.inputs[:count], questions.targets[:count], prompts)


def _read(
    process: ContenderProcess, event: events.Event, questions: events.Questions
) -> list[Array]:
    """Ask as the event does, a request of `batch` examples after the other."""
    return [
        process.ask("forward", questions.inputs[start : start + event.batch]).output
        for start in range(0, len(questions.inputs), event.batch)
    ]


def _check_outputs(
    entry: Entry, event: events.Event, questions: events.Questions, outputs: list[Array]
) -> Iterator[Finding]:
    """A1: finite numbers of the reference's shape. A2, a doubt: the tier is clearly lost."""
    expected = _reference_outputs(event, questions)
    for number, found in enumerate(outputs):
        wanted = expected[number * event.batch : (number + 1) * event.batch]
        if found.shape != wanted.shape or found.dtype.kind not in "fiu":
            yield finding(
                "A1",
                f"an answer is {found.dtype.name} of shape {found.shape}, the reference's is "
                f"{wanted.dtype.name} of shape {wanted.shape}",
            )
            return
        if not np.isfinite(found).all():
            yield finding("A1", f"answer {number} to a public question is not finite")
            return
    ours = events.score_answers(event, expected, questions.targets)
    theirs = events.score_answers(event, np.concatenate(outputs), questions.targets)
    accuracy = events.compare_in_tier(event, entry.tier, ours, theirs)
    if events.tier_verdict(accuracy) == events.LOST:
        yield doubt(
            "A2",
            f"on {accuracy.n} public examples, {event.metric} {accuracy.baseline_mean:.4g} becomes "
            f"{accuracy.candidate_mean:.4g}; the tier allows a drop of {accuracy.margin:.2g}",
        )


def _reference_outputs(event: events.Event, questions: events.Questions) -> Array:
    model = load_zoo(event.model).model
    with no_grad(), use_backend(BACKEND):
        outputs: Array = model(Tensor(questions.inputs)).data
    return outputs


def _check_texts(process: ContenderProcess, questions: events.Questions) -> Iterator[Finding]:
    """A1: what is written are characters of the alphabet."""
    for prompt in () if questions.prompts is None else questions.prompts:
        if not is_written_text(process.ask("generate", prompt, count=WRITTEN)):
            yield finding(
                "A1",
                f"asked for {WRITTEN} characters after {len(prompt)}, it gave something else",
                f"give whole numbers of shape ({WRITTEN},)",
            )
            return


# ---------------------------------------------------------------- what can be found against an
# entry before it competes, with public data alone


def check_entry(
    entry: Entry, *, trust: bool = False, run: bool = True, limits: Limits = USUAL_LIMITS
) -> tuple[Finding, ...]:
    """Check an entry offline, in a few seconds, and return the findings.

    With `run`, and if nothing fatal is found by reading, the entry is built in a separate process
    and answers public questions. Code runs only with `trust`.
    """
    findings = tuple(each for check in CHECKS for each in check(entry))
    if entry.code is not None and not trust:
        findings += (finding("E6", f"it is code: {entry.code}"),)
    if not run or any(each.is_fatal for each in findings):
        return findings
    return findings + try_entry(entry, start=partial(ContenderProcess, limits=limits))


# ---------------------------------------------------------------- techniques


def _check_techniques(entry: Entry) -> Iterator[Finding]:
    """E3, E5, E8: what is declared is known, allowed, and can be done here."""
    for technique in entry.techniques:
        if entry.code is not None:
            if technique.transforms:
                yield finding(
                    "E3",
                    f"{technique.name} has transforms, and the entry is code",
                    "leave out the transforms: the code is told the names, and does the rest",
                )
            continue
        try:
            yield from _check_technique(entry, technique)
        except EntryError as error:
            yield error.finding


def _check_technique(entry: Entry, technique: Technique) -> Iterator[Finding]:
    techniques.resolve(technique)
    reason = techniques.why_not_in(entry.division, technique)
    if reason:
        yield finding("E5", reason)
    for extra in techniques.missing_parts(technique):
        yield finding(
            "E8",
            f"{technique.name} needs a part that is not installed",
            f"in the folder of TinyTorch: pip install '.[{extra}]'",
        )
    if technique.name == techniques.KV_CACHE and events.find_event(entry.event).model != "gpt":
        yield finding(
            "E3", f"{techniques.KV_CACHE} is for text, and {entry.event} has none", "leave it out"
        )


def _check_order(entry: Entry) -> Iterator[Finding]:
    """E3, a doubt: techniques of the catalog have places, and some find nothing after others."""
    if entry.code is not None:
        return
    known = {each.name: each for each in CATALOG}
    declared = [known[each.name] for each in entry.techniques if each.name in known]
    for first, second in pairwise(declared):
        if first.role == second.role:
            yield doubt(
                "E3",
                f"{first.name} and {second.name} are rivals",
                "see whether one of them is better",
            )
        elif first.place > second.place:
            yield doubt(
                "E3",
                f"{first.name} stands before {second.name}, which may then find less to do",
                f"put {second.name} first",
            )


def _check_precision(entry: Entry) -> Iterator[Finding]:
    """A4: no technique is less precise than what is declared. Only in closed it is decisive."""
    if entry.code is not None:
        return
    implied = {}
    for technique in entry.techniques:
        with suppress(EntryError):  # told already
            implied[technique.name] = techniques.implied_precision(technique)
    name = max(implied, key=lambda each: PRECISIONS.index(implied[each]), default=None)
    if name is None or PRECISIONS.index(implied[name]) <= PRECISIONS.index(entry.precision):
        return
    seen = f"{name} uses {implied[name]}, and the entry declares {entry.precision}"
    make = finding if entry.division == "closed" else doubt
    yield make("A4", seen, f'write "precision": "{implied[name]}"')


# ---------------------------------------------------------------- weights


def _check_weights(entry: Entry) -> Iterator[Finding]:
    """E4, E8: the file can be read; in closed it holds what the reference does."""
    if entry.weights is None:
        return
    try:
        arrays, metadata = read_arrays(entry.folder / entry.weights)
    except CheckpointError as error:
        yield finding("E8", str(error), "write it with save_checkpoint() or save_optimized()")
        return
    if entry.division != "closed":
        return
    if KEY in metadata:
        yield finding(
            "E4",
            f"{shown(entry.weights)} is a model that was changed before it was saved",
            "leave out the weights and declare the techniques, or enter the open division",
        )
        return
    reference, _ = read_arrays(WEIGHTS / f"{events.find_event(entry.event).model}.safetensors")
    ours = {name: each for name, each in arrays.items() if not name.startswith(OPTIMIZER_PREFIX)}
    other = [
        name
        for name in dict.fromkeys((*reference, *ours))
        if not _is_same(reference.get(name), ours.get(name))
    ]
    if other:
        yield finding(
            "E4",
            f"{shown(entry.weights)} is not the reference's: {len(other)} of {len(reference)} "
            f"tensors differ, the first is {shown(other[0])}",
        )


def _is_same(expected: BackendsArray | None, found: BackendsArray | None) -> bool:
    if expected is None or found is None or expected.dtype != found.dtype:
        return False
    return np.array_equal(expected, found)


CHECKS: tuple[Callable[[Entry], Iterator[Finding] | tuple[Finding, ...]], ...] = (
    _check_techniques,
    _check_order,
    _check_precision,
    _check_weights,
    check_code,
)

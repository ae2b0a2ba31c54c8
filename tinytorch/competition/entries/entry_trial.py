"""Try an entry: build it as the judge does, and let it answer questions that everybody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from tinytorch.competition.cell.building import SIZE_OF_CODE
from tinytorch.competition.cell.contender import BACKEND, Contender, ContenderError
from tinytorch.competition.cell.contender_process import ContenderProcess
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.entries.entry_file import contender_of
from tinytorch.competition.events import Event, find_event
from tinytorch.competition.judging.courses import WRITTEN
from tinytorch.competition.judging.heats import is_written_text
from tinytorch.competition.questions import Questions, public_questions, score_answers
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.tiers import LOST, compare_in_tier, tier_verdict
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor
from tinytorch.workloads.zoo import load_zoo

__all__ = ["EXAMPLES", "try_entry"]

EXAMPLES = 500
"""At most; texts, which hold many characters, are as many as in a heat."""
PROMPTS = 3
Array = npt.NDArray[np.generic]
Start = Callable[[Contender], AbstractContextManager[ContenderProcess]]


def try_entry(entry: Entry, *, start: Start = ContenderProcess) -> tuple[Finding, ...]:
    """Build an entry in a process of its own and ask it some public questions.

    Whether it keeps its tier is decided on private questions; here only what is clearly lost is
    told, as a doubt. Where the entry has code, this runs it.
    """
    event = find_event(entry.event)
    questions = _few(public_questions(event), min(EXAMPLES, event.examples))
    try:
        with start(contender_of(entry)) as process:
            notes = process.load().notes
            outputs = _read(process, event, questions)
            findings = (*_check_outputs(entry, event, questions, outputs),)
            if not findings:
                findings = (*_check_texts(process, questions),)
    except ContenderError as error:
        return (finding(error.rule, str(error), "mend it, and check again"),)
    return findings + tuple(
        doubt("E8", note, "nothing to do, if that is meant")
        for note in notes
        if note != SIZE_OF_CODE  # so it is with all code, and nothing to be mended
    )


def _few(questions: Questions, count: int) -> Questions:
    prompts = None if questions.prompts is None else questions.prompts[:PROMPTS]
    return Questions(questions.inputs[:count], questions.targets[:count], prompts)


def _read(process: ContenderProcess, event: Event, questions: Questions) -> list[Array]:
    """Ask as the event does, a request of `batch` examples after the other."""
    return [
        process.ask("forward", questions.inputs[start : start + event.batch]).output
        for start in range(0, len(questions.inputs), event.batch)
    ]


def _check_outputs(
    entry: Entry, event: Event, questions: Questions, outputs: list[Array]
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
    ours = score_answers(event, expected, questions.targets)
    theirs = score_answers(event, np.concatenate(outputs), questions.targets)
    accuracy = compare_in_tier(event, entry.tier, ours, theirs)
    if tier_verdict(accuracy) == LOST:
        yield doubt(
            "A2",
            f"on {accuracy.n} public examples, {event.metric} {accuracy.baseline_mean:.4g} becomes "
            f"{accuracy.candidate_mean:.4g}; the tier allows a drop of {accuracy.margin:.2g}",
        )


def _reference_outputs(event: Event, questions: Questions) -> Array:
    model = load_zoo(event.model).model
    with no_grad(), use_backend(BACKEND):
        outputs: Array = model(Tensor(questions.inputs)).data
    return outputs


def _check_texts(process: ContenderProcess, questions: Questions) -> Iterator[Finding]:
    """A1: what is written are characters of the alphabet."""
    for prompt in () if questions.prompts is None else questions.prompts:
        if not is_written_text(process.ask("generate", prompt, count=WRITTEN)):
            yield finding(
                "A1",
                f"asked for {WRITTEN} characters after {len(prompt)}, it gave something else",
                f"give whole numbers of shape ({WRITTEN},)",
            )
            return

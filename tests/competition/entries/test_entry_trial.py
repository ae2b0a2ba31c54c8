"""A trial finds answers that are none, and accuracy that is clearly lost, on public questions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from example_entries import an_entry

from tinytorch.competition import entry_checks as entry_trial
from tinytorch.competition.entry_checks import EXAMPLES, try_entry
from tinytorch.competition.sandbox.building import SIZE_OF_CODE, Built, build
from tinytorch.competition.sandbox.contender import Answer, Contender, ContenderError, Kind, Loading
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import active_backend, use_backend

Change = Callable[[np.ndarray], np.ndarray]


class InThisProcess:
    """Answers as a contender's process does, with some change to what is given."""

    def __init__(self, built: Built, change: Change, write: Change) -> None:
        self.built, self.change, self.write = built, change, write
        self.asked: list[tuple[Kind, tuple[int, ...]]] = []

    def load(self) -> Loading:
        return Loading(0.1, 1_000, notes=self.built.notes)

    def ask(self, kind: Kind, question: Any, *, count: int = 0) -> Answer:
        self.asked.append((kind, question.shape))
        with no_grad():
            if kind == "generate":
                return Answer(self.write(np.arange(count)), 1.0, 1.0)
            return Answer(self.change(np.asarray(self.built.forward(question))), 1.0, 1.0)


def _same(output: np.ndarray) -> np.ndarray:
    return output


def _try(
    *techniques: str, change: Change = _same, write: Change = _same, **changes: Any
) -> list[tuple[str, str]]:
    @contextmanager
    def start(contender: Contender) -> Iterator[ContenderProcess]:
        yield cast(ContenderProcess, InThisProcess(build(contender), change, write))

    found = try_entry(an_entry(*techniques, **changes), start=start)
    return [(each.rule, f"{each.severity}: {each.seen}") for each in found]


def test_the_reference_answers_as_it_should() -> None:
    assert _try() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda output: output[0], "shape (10,)"),
        (lambda output: output[:, :9], "shape (1, 9), the reference's"),
        (lambda output: output > 0, "an answer is bool"),
        (lambda output: output * np.nan, "answer 0 to a public question is not finite"),
    ],
)
def test_answers_that_are_none_are_found(change: Change, words: str) -> None:
    ((rule, told),) = _try(change=change)
    assert rule == "A1"
    assert words in told


def test_accuracy_that_is_clearly_lost_is_a_doubt() -> None:
    ((rule, told),) = _try(change=lambda output: np.roll(output, 1, axis=-1))
    assert rule == "A2"
    assert told.startswith(f"warning: on {EXAMPLES} public examples, accuracy 0.9")


def test_a_technique_that_finds_nothing_to_do_is_told() -> None:
    ((rule, told),) = _try("fused-layers", event="cnn_marathon")
    assert (rule, told[:45]) == ("E8", "warning: fused-layers found nothing to do: no")


def test_the_reference_is_computed_as_in_the_competition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    load = entry_trial.load_zoo

    def noted(name: str) -> Any:
        workload = load(name)

        def answer(inputs: Any) -> Any:
            seen.add(active_backend().name)
            return workload.model(inputs)

        return replace(workload, model=answer)

    monkeypatch.setattr(entry_trial, "load_zoo", noted)
    with use_backend("reference"):  # whatever this process computes with
        assert _try() == []
    assert seen == {"numpy"}


def test_how_code_is_sized_is_no_warning() -> None:
    @contextmanager
    def start(contender: Contender) -> Iterator[ContenderProcess]:
        noted = replace(build(contender), notes=(SIZE_OF_CODE, "another note"))
        yield cast(ContenderProcess, InThisProcess(noted, _same, _same))

    assert [each.seen for each in try_entry(an_entry(), start=start)] == ["another note"]


def test_a_process_that_fails_is_a_finding_of_its_rule() -> None:
    @contextmanager
    def start(contender: Contender) -> Iterator[ContenderProcess]:
        raise ContenderError("T6", "it was ended")
        yield

    (found,) = try_entry(an_entry(), start=start)
    assert (found.rule, found.seen) == ("T6", "it was ended")


@pytest.mark.slow
def test_text_is_whole_numbers_of_the_alphabet() -> None:
    event = "transformer_decathlon"
    assert _try(event=event) == []
    ((rule, told),) = _try(write=lambda ids: ids + 1_000_000, event=event)
    assert (rule, "asked for 48 characters after 16" in told) == ("A1", True)


@pytest.mark.slow
def test_a_real_process_is_tried() -> None:
    assert try_entry(an_entry("fused-layers")) == ()

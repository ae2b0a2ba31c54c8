"""What new entries start with does what it says: each example answers as the reference does."""

from pathlib import Path

import numpy as np
import pytest

from tinytorch.competition.entry import Technique
from tinytorch.competition.entry_checks import contender_of
from tinytorch.competition.events import EVENTS, warm_up_questions
from tinytorch.competition.new_entry import EXAMPLES, new_entry, readme_of
from tinytorch.competition.sandbox.building import build
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.techniques import implied_precision, why_not_in
from tinytorch.core.autograd import no_grad

ROUNDING = 1e-4  # float32, a hundred sums of up to a few hundred products


def test_every_event_has_an_example() -> None:
    assert set(EXAMPLES) == set(EVENTS)


def test_techniques_to_start_with_are_exact() -> None:
    for example in EXAMPLES.values():
        for name in {*example.techniques, *example.compiled}:
            assert not why_not_in("closed", Technique(name))
            assert implied_precision(Technique(name)) == "float32"


@pytest.mark.parametrize("event", EVENTS)
def test_code_answers_as_the_reference_does(tmp_path: Path, event: str) -> None:
    entry = new_entry(tmp_path, event=event, team="Ada", example="code")
    (technique,) = entry.techniques
    asked = warm_up_questions(EVENTS[event]).inputs[: EVENTS[event].batch]
    expected = build(Contender(event)).forward(asked)
    with no_grad():
        for contender in (contender_of(entry), contender_of(entry, without=technique.name)):
            found = build(contender).forward(asked.copy())
            np.testing.assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)


def test_the_example_of_the_decathlon_writes_what_the_reference_writes(tmp_path: Path) -> None:
    event = "transformer_decathlon"
    entry = new_entry(tmp_path, event=event, team="Ada", example="code")
    prompts = warm_up_questions(EVENTS[event]).prompts
    assert prompts is not None
    with no_grad():
        texts = [
            build(each).generate(prompts[0], 8).tolist()
            for each in (contender_of(entry), Contender(event))
        ]
    assert texts[0] == texts[1]


def test_the_page_says_what_to_try() -> None:
    fields = dict.fromkeys(
        ("title", "team", "about", "division", "tier", "techniques", "code"), "x"
    )
    for event, example in EXAMPLES.items():
        text = readme_of(event, is_code=False, **fields)
        assert example.further in text
        assert '{"name": "careful-int8"' in text
        assert "--trust" not in text

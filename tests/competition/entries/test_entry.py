"""An entry checks itself: every value is known, short and can be seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_entries import PLAIN
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.entry import EntryError, Technique, check_file_name, shown
from tinytorch.errors import SettingError


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"team": ""}, "E1", "team is ''"),
        ({"team": " Ada"}, "E1", "without spaces around it"),
        ({"team": "a" * 61}, "E1", "61 characters"),
        ({"team": "a/b"}, "E1", "leave out /"),
        ({"team": "a\nb"}, "E1", "U\\+000A"),
        ({"team": "\u202eadA"}, "E1", "U\\+202E"),
        ({"team": "a\ud800"}, "E1", "U\\+D800"),
        ({"team": 7}, "E1", "give text in quotes"),
        ({"event": "mlp"}, "E2", "there are mlp_sprint, cnn_marathon"),
        ({"event": ["mlp_sprint"]}, "E2", "event is \\['mlp_sprint'\\]"),
        ({"division": "Closed"}, "E2", "there are closed, open, learner"),
        ({"tier": 0.9}, "E2", "there are 0.99, 0.999"),
        ({"tier": "0.99"}, "E2", "tier is '0.99'"),
        ({"precision": "float64"}, "E2", "float32, bfloat16"),
        ({"weights": "/etc/passwd"}, "E1", "name a file in the folder"),
        ({"weights": "../a.safetensors"}, "E1", "name a file in the folder"),
        ({"weights": "a/./b"}, "E1", "name a file"),
        ({"weights": "results/x"}, "E1", "not in results/"),
        ({"weights": "c:\\x"}, "E1", "name a file"),
        ({"weights": ""}, "E1", "name a file"),
        ({"code": "model.py"}, "E1", "such as model.py:make"),
        ({"code": "os:system"}, "E1", "such as model.py:make"),
        ({"code": "a/model.py:make"}, "E1", "put the file beside entry.json"),
        ({"code": "../model.py:make"}, "E1", "name a file"),
        ({"weights": "a", "code": "model.py:make"}, "E1", "give one of them"),
        ({"description": "a\x1b[31m"}, "E1", "U\\+001B"),
        ({"url": "javascript:alert(1)"}, "E1", "give https"),
        ({"techniques": (Technique("a"), Technique("a"))}, "E1", "declared twice"),
        ({"techniques": tuple(Technique(f"a{n}") for n in range(21))}, "E1", "at most 20"),
    ],
)
def test_what_is_wrong_is_told_with_its_rule(
    changes: dict[str, Any], rule: str, words: str
) -> None:
    with pytest.raises(EntryError, match=words) as caught:
        replace(PLAIN, **changes)
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"{rule}: ")


def test_an_entry_error_is_a_setting_error_and_has_a_finding() -> None:
    error = EntryError("E2", "tier is 2", "there are two")
    assert isinstance(error, SettingError)
    assert (error.finding.seen, error.finding.fix, error.finding.is_fatal) == (
        "tier is 2",
        "there are two",
        True,
    )


@pytest.mark.parametrize("name", ["Int8", "a b", "a--b", "-a", "a/b", "", "é"])
def test_a_technique_has_a_plain_name(name: str) -> None:
    with pytest.raises(EntryError, match="small letters, digits and dashes"):
        Technique(name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "are no object"),
        ({"a": float("nan")}, "hold nan"),
        ({"a": float("inf")}, "hold inf"),
        ({"a": 2**60}, "finite, usual number"),
        ({"a": 10**5000}, "hold a int"),
        ({"a": [[[[[1]]]]]}, "nested too deeply"),
        ({"a": b"x"}, "hold a bytes"),
        ({"a": "x" * 300}, "300 characters"),
        ({"a\0": 1}, "U\\+0000"),
    ],
)
def test_settings_are_few_plain_values(settings: Any, words: str) -> None:
    with pytest.raises(EntryError, match=words):
        Technique("a", (("Quantize", settings),))


def test_a_description_may_have_lines() -> None:
    assert replace(PLAIN, description="one\ntwo").description == "one\ntwo"


@given(st.text(max_size=70))
def test_a_team_that_is_taken_can_be_shown(team: str) -> None:
    try:
        entry = replace(PLAIN, team=team)
    except EntryError:
        return
    assert len(entry.team.splitlines()) == 1
    assert not set("/\\\x1b\u202e\u200b") & set(entry.team)


@given(st.text(max_size=30))
def test_a_file_name_that_is_taken_stays_below(name: str) -> None:
    try:
        check_file_name(name, "weights")
    except EntryError:
        return
    parts = name.split("/")
    assert all(parts)
    assert not {".", ".."} & set(parts)


def test_what_is_shown_is_short() -> None:
    assert len(shown("ä" * 100)) == 60


def test_letters_of_any_script_are_shown_as_they_are() -> None:
    assert shown("Zoë 你好 سلام") == "'Zoë 你好 سلام'"


@given(st.text(st.characters()))
def test_what_is_shown_is_one_line_of_letters_that_can_be_seen(text: str) -> None:
    assert shown({text: [text]}).isprintable()


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\n", "\u202e", "\u2066", "\u200f", "\ud800"])
def test_what_steers_or_turns_a_line_is_shown_in_numbers(letter: str) -> None:
    assert letter not in shown(f"a{letter}b")


def test_entries_are_equal_wherever_their_folder_is(tmp_path: Path) -> None:
    assert replace(PLAIN, folder=tmp_path) == PLAIN

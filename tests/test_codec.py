"""One codec for all results: what is written, what is read, and where data does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest

from tinytorch.codec import Coded, DataError, decode, encode
from tinytorch.errors import Failure, Note


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    first: int
    second: str


@dataclass(frozen=True)
class Leaf:
    values: tuple[float, ...]
    colour: Colour = Colour.RED
    place: Path = Path("a/b")
    sort: Literal["x", "y"] = "x"


@dataclass(frozen=True)
class Node(Coded):
    name: str
    count: int
    leaves: tuple[Leaf, ...] = ()
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    child: Node | None = None
    both: tuple[int, float] = (1, 2.0)
    either: int | str = 0
    anything: Any = None
    high: float = math.inf
    secret: str = "kept in memory"

    schema = 3
    upgrades: ClassVar = {
        1: lambda old: {"name": old["called"], "count": old["count"]},
        2: lambda old: old | {"count": old["count"] * 10},
    }
    also_written = ("double", "name")
    renames: ClassVar = {"secret": None, "either": "one_of"}
    none_means: ClassVar = {"high": math.inf}

    @property
    def double(self) -> int:
        return 2 * self.count


@dataclass(frozen=True)
class Scores(Coded):
    values: tuple[float, ...]
    best: float = 0.0
    note: str = ""

    nonfinite = "text"


@dataclass(frozen=True)
class Strict(Coded):
    value: int
    numbers: tuple[float, ...] = ()

    strict = True


@dataclass(frozen=True)
class Wrapped(Coded):
    inner: Strict
    total: int = 0

    def to_dict(self):
        return {**super().to_dict(), "more": 1}

    @classmethod
    def from_dict(cls, fields):
        return super().from_dict({**fields, "total": 7})


@dataclass(frozen=True)
class Holder(Coded):
    wrapped: Wrapped


LEAF = Leaf((1.0, 2.0))
NODE = Node("n", 2, (LEAF,), {"a": LEAF}, Node("c", 1), (3, 4.5), "text", {"k": (1, 2)}, 9.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        ("a", "a"),
        (1.5, 1.5),
        (math.nan, None),
        (-math.inf, None),
        (np.float32(0.5), 0.5),
        (np.float64(np.inf), None),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array([1.0, np.nan]), [1.0, None]),
        ((1.0, math.inf), [1.0, None]),
        ((1e308, 1e308), [1e308, 1e308]),
        ((1, "a", None), [1, "a", None]),
        ((np.float32(0.5), 1.0), [0.5, 1.0]),
        ([[1], (2,)], [[1], [2]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({2.0: 1, math.inf: 2, "b": 3}, {"2": 1, "inf": 2, "b": 3}),
        ({1: Colour.RED, "x": Path("a/b")}, {"1": "red", "x": "a/b"}),
        (Pair(1, "b"), [1, "b"]),
        (
            LEAF,
            {"values": [1.0, 2.0], "colour": "red", "place": "a/b", "sort": "x"},
        ),
    ],
)
def test_everything_becomes_plain_json(value, expected):
    found = encode(value)
    assert found == expected
    assert type(found) is type(expected)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_what_has_no_form_in_json_is_refused():
    with pytest.raises(TypeError, match="object has no form"):
        encode({"a": [object()]})


def test_an_instance_survives_writing_and_reading():
    written = json.loads(json.dumps(NODE.to_dict(), allow_nan=False))
    found = Node.from_dict(written)
    assert found == Node(**{**vars(NODE), "anything": {"k": [1, 2]}})
    assert found.to_dict() == NODE.to_dict() == encode(NODE)


def test_keys_are_the_version_then_conclusions_then_fields():
    assert list(NODE.to_dict()) == [
        *("schema", "double", "name", "count", "leaves", "by_name", "child", "both", "one_of"),
        *("anything", "high"),
    ]
    assert NODE.to_dict()["double"] == 4


def test_missing_fields_get_their_defaults_and_unknown_ones_are_ignored():
    assert Node.from_dict({"schema": 3, "name": "a", "count": 1, "new": 1}) == Node("a", 1)


def test_none_stands_for_the_number_that_the_class_names():
    assert Node("a", 1).to_dict()["high"] is None
    assert Node.from_dict({"schema": 3, "name": "a", "count": 1, "high": None}).high == math.inf


@pytest.mark.parametrize("values", [(1.0, math.inf, -math.inf), (math.nan,), (1.0, 2.0), ()])
def test_numbers_that_are_not_finite_can_be_text(values):
    found = Scores(values, best=math.inf, note="nan")
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert repr(Scores.from_dict(written)) == repr(found)


@pytest.mark.parametrize(
    "old", [{"schema": 1, "called": "a", "count": 1}, {"schema": 2, "name": "a", "count": 1}]
)
def test_older_versions_are_upgraded_step_by_step(old):
    assert Node.from_dict(old) == Node("a", 10)


@pytest.mark.parametrize("version", [None, 0, 4, "3", True])
def test_other_versions_are_refused(version):
    with pytest.raises(DataError, match=r"^Node\.schema: expected 3"):
        Node.from_dict({"schema": version, "name": "a", "count": 1})


GOOD = NODE.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "Node.name: expected text, got 3"),
        ({"count": True}, "Node.count: expected a whole number, got True"),
        ({"count": 1.5}, "Node.count: expected a whole number, got 1.5"),
        ({"leaves": {}}, "Node.leaves: expected a list, got {}"),
        ({"leaves": [LEAF.__dict__]}, "Node.leaves[0].colour: expected one of 'red', got"),
        ({"leaves": [GOOD["leaves"][0], 7]}, "Node.leaves[1]: expected an object, got 7"),
        ({"leaves": [{"values": [1.0, "x"]}]}, "Node.leaves[0].values[1]: expected a number, got"),
        ({"leaves": [{}]}, "Node.leaves[0].values is missing"),
        ({"by_name": {"a": {"values": [], "sort": "z"}}}, "Node.by_name.a.sort: expected one of"),
        ({"by_name": []}, "Node.by_name: expected an object, got []"),
        ({"child": {"schema": 3}}, "Node.child.name is missing"),
        ({"both": [1]}, "Node.both: expected a list of 2, got [1]"),
        ({"both": [1, "x"]}, "Node.both[1]: expected a number, got 'x'"),
        ({"one_of": 1.5}, "Node.one_of: expected text, got 1.5"),
        ({"high": "x"}, "Node.high: expected a number, got 'x'"),
    ],
)
def test_an_error_names_the_place(change, message):
    with pytest.raises(DataError) as caught:
        Node.from_dict({**GOOD, **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("data", [None, 3, [], "text"])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(DataError, match="Node: expected an object"):
        Node.from_dict(data)


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(DataError) as caught:
        decode(Leaf, {"values": "x" * 1000})
    assert len(str(caught.value)) < 140


def test_unknown_fields_are_refused_where_every_field_counts():
    assert Strict.from_dict({"value": 1}) == Strict(1)
    with pytest.raises(DataError, match=r"Strict\.other"):
        Strict.from_dict({"value": 1, "other": 2})
    with pytest.raises(DataError, match=r"Strict\.numbers\[1\]: expected a number, got True"):
        Strict.from_dict({"value": 1, "numbers": [1.0, True]})


def test_own_methods_of_a_class_are_used_inside_of_others():
    held = Holder(Wrapped(Strict(1)))
    assert held.to_dict() == {
        "wrapped": {"inner": {"value": 1, "numbers": []}, "total": 0, "more": 1}
    }
    assert Holder.from_dict(held.to_dict()).wrapped.total == 7


@pytest.mark.parametrize(
    ("hint", "data", "expected"),
    [
        (tuple[int, ...], [1, 2], (1, 2)),
        (list[str], ["a"], ["a"]),
        (frozenset[str], ["a", "a"], frozenset({"a"})),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Path, "a/b", Path("a/b")),
        (bool, False, False),
        (float, 8, 8),
    ],
)
def test_hints_say_how_data_is_read(hint, data, expected):
    @dataclass(frozen=True)
    class Any1:
        value: hint

    Any1.__annotations__["value"] = hint
    found = decode(Any1, {"value": data}).value
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("kind", [Note, Failure])
def test_notes_of_former_versions_are_text(kind):
    assert decode(kind, "some words") == kind("some words")
    assert decode(kind, {"words": "some words", "code": "c"}) == kind("some words", "c")
    assert encode(kind("some words", "c")) == {"words": "some words", "code": "c", "subject": ""}
    with pytest.raises(DataError, match=f"{kind.__name__}: expected an object, got 3"):
        decode(kind, 3)


def test_arrays_are_read_as_arrays():
    @dataclass(frozen=True)
    class WithArray:
        values: Any

    WithArray.__annotations__["values"] = np.ndarray[Any, np.dtype[np.float64]]
    found = decode(WithArray, {"values": [[1.0], [2.0]]}).values
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 1)


def test_a_hint_that_cannot_be_read_says_so():
    @dataclass(frozen=True)
    class Odd:
        value: Any

    Odd.__annotations__["value"] = object.__class__
    with pytest.raises(TypeError, match="cannot be read"):
        decode(Odd, {"value": 1})

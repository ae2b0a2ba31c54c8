"""A manifest is strict JSON of a known schema; anything else is an error that says why."""

import json
from dataclasses import replace
from typing import Any

import pytest
from example_entries import PLAIN, an_entry, manifest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.competition.entry import (
    Entry,
    EntryError,
    Technique,
    entry_in,
    manifest_of,
    parse_manifest,
)
from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: (
        st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=8), each, max_size=4)
    ),
    max_leaves=20,
)
FIELDS = st.sampled_from([*manifest(), "techniques", "precision", "weights", "code", "url"])
TECHNIQUES = st.fixed_dictionaries(
    {"name": st.just("a") | JSON},
    optional={
        "transforms": JSON
        | st.lists(
            st.fixed_dictionaries(
                {"transform": st.just("Quantize") | JSON}, optional={"settings": JSON}
            ),
            max_size=3,
        )
    },
)


def _read(fields: Any) -> Entry:
    return entry_in(parse_manifest(json.dumps(fields).encode()))


def test_only_six_fields_are_needed() -> None:
    assert _read(manifest()) == PLAIN
    for name in manifest():
        with pytest.raises(EntryError):
            _read({key: value for key, value in manifest().items() if key != name})


def test_techniques_are_names_or_objects() -> None:
    transforms = [{"transform": "Quantize", "settings": {"mode": "static"}}]
    entry = _read(manifest(techniques=["fused-layers", {"name": "mine", "transforms": transforms}]))
    mine = Technique("mine", (("Quantize", {"mode": "static"}),))
    assert entry.techniques == (Technique("fused-layers"), mine)


@given(
    st.builds(
        Entry,
        team=st.from_regex(r"[a-cé]([a-c -]{0,5}[a-c])?", fullmatch=True),
        event=st.sampled_from(list(EVENTS)),
        division=st.sampled_from(DIVISIONS),
        tier=st.sampled_from(TIERS),
        precision=st.sampled_from(["float32", "int8"]),
        weights=st.sampled_from([None, "model.safetensors", "a/b.safetensors"]),
        description=st.text("ab\n\U0001f600", max_size=20),
        url=st.sampled_from(["", "https://example.org/x"]),
        techniques=st.sampled_from(
            [(), (Technique("a"), Technique("b", (("Prune", {"sparsity": 0.5, "keep": ["x"]}),)))]
        ),
    )
)
def test_what_is_written_is_read_back(entry: Entry) -> None:
    assert _read(manifest_of(entry)) == replace(entry, sha256="")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "update TinyTorch"),
        ({"schema": True}, "schema is True"),
        ({"schema": "1"}, "write 1"),
        ({"format": "another"}, "its format is not"),
        ({"techniqes": []}, "did you mean 'techniques'"),
        ({"xyz": 1}, "unknown field 'xyz'; there are format"),
        ({"techniques": "fused-layers"}, "give a list"),
        ({"techniques": [1]}, "a technique is 1"),
        ({"techniques": [{"transforms": []}]}, "give a name"),
        (
            {"techniques": [{"name": "a", "settings": {}}]},
            "an unknown field 'settings'",
        ),
        ({"techniques": [{"name": "a", "transforms": {}}]}, "transforms is {}"),
        ({"techniques": [{"name": "a", "transforms": ["Prune"]}]}, "a transform is 'Prune'"),
        ({"techniques": [{"name": "a", "transforms": [{"transform": 1}]}]}, "give text"),
        ({"weights": 3}, "weights is 3"),
        ({"description": None}, "description is None"),
    ],
)
def test_what_is_wrong_names_the_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EntryError, match=words):
        _read(manifest(**changes))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"1" * 10_000,
        b'{"format": "tinytorch competition entry", "schema": 1e999}',
        b"\x80\x04\x95.",
        b"[]",
        b"null",
        '{"\ud800": 1}'.encode("utf-8", "surrogatepass"),
    ],
)
def test_bytes_that_are_no_manifest_are_an_entry_error(content: bytes) -> None:
    with pytest.raises(EntryError) as caught:
        entry_in(parse_manifest(content))
    assert caught.value.rule == "E1"


def test_a_byte_order_mark_of_an_editor_does_no_harm() -> None:
    assert entry_in(parse_manifest(b"\xef\xbb\xbf" + json.dumps(manifest()).encode())) == PLAIN


def _entry_or_error(fields: Any) -> Entry | EntryError:
    """Give what reading gives; any other error ends the test."""
    try:
        return entry_in(fields)
    except EntryError as error:
        return error


@given(JSON)
def test_any_json_is_no_entry_by_chance(fields: Any) -> None:
    assert isinstance(_entry_or_error(fields), EntryError)


@settings(max_examples=100)
@given(FIELDS, JSON | st.lists(TECHNIQUES, max_size=3))
def test_any_value_of_any_field_gives_an_entry_or_an_entry_error(name: str, value: Any) -> None:
    found = _entry_or_error(manifest(**{name: value}))
    if isinstance(found, EntryError):
        assert str(found).isprintable()
    else:
        assert _read(manifest_of(found)) == found


@given(st.data())
def test_a_manifest_that_ends_early_or_is_damaged_is_an_entry_error_at_most(
    data: st.DataObject,
) -> None:
    whole = json.dumps(manifest_of(an_entry("fused-layers"))).encode()
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:cut] + data.draw(st.binary(max_size=3)) + whole[cut + 1 :]
    with pytest.raises(EntryError):
        parse_manifest(whole[:cut])
    try:
        fields = parse_manifest(damaged)
    except EntryError:
        return
    assert isinstance(_entry_or_error(fields), Entry | EntryError)

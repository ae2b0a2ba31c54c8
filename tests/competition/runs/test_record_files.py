"""Files of others are read with care, and written once."""

import json
import os

import pytest
from example_judgements import kept_judgement, some_accuracy
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.run_files import (
    LARGEST_RECORD_BYTES,
    read_record_file,
    read_text,
    record_text,
    write_new,
)
from tinytorch.errors import RecordError

RECORD = as_record(kept_judgement())
TEXT = record_text(RECORD)


def test_a_record_comes_back(tmp_path):
    write_new(tmp_path / "run.json", TEXT)
    assert read_record_file(tmp_path / "run.json") == RECORD


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def changed_file(tmp_path_factory):
    return tmp_path_factory.mktemp("changed") / "run.json"


@settings(max_examples=150)
@given(st.integers(0, len(TEXT) - 1), st.integers(1, 127))
def test_every_change_of_one_byte_is_found(changed_file, position, letter):
    content = bytearray(TEXT.encode("ascii"))
    content[position] ^= letter
    changed_file.write_bytes(content)
    with pytest.raises(RecordError):
        read_record_file(changed_file)


LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
OTHER = dict(zip(LETTERS, "1234567890" + LETTERS[11:] + "a", strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [lambda letter: OTHER.get(letter, " "), lambda letter: "1"],
    ids=["the next letter", "a one"],
)
def test_every_change_that_is_still_json_is_found_at_every_place(tmp_path, change):
    small = kept_judgement(count=6, ablations=(), accuracy=some_accuracy(count=10))
    text, path, still_json = record_text(as_record(small)), tmp_path / "run.json", 0
    for position, letter in enumerate(text):
        changed = text[:position] + change(letter) + text[position + 1 :]
        if changed == text or not is_json(changed):
            continue
        still_json += 1
        path.write_text(changed)
        with pytest.raises(RecordError):
            read_record_file(path)
    assert still_json > len(text) / 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT + " ", "the same in other letters"),
        (json.dumps(json.loads(TEXT), indent=2), "the same in other letters"),
        ('{"hash":"0",' + TEXT[1:], "the same in other letters"),
        (
            json.dumps({k: v for k, v in json.loads(TEXT).items() if k != "hash"}),
            "without its hash",
        ),
        (TEXT.replace('"n":10', '"n":11'), "the hash does not fit"),
        (TEXT.replace("12.5", "1e400"), "not JSON: the number 1e400"),
        (TEXT.replace("12.5", "NaN"), "not JSON: .*NaN"),
        ("[" * 100_000, "not JSON"),
        ("1" * 100_000, "not JSON"),
        ("\ufeff" + TEXT, "not JSON"),
        (b"\x80\x04.", "not text"),
        (b"\0" * (LARGEST_RECORD_BYTES + 1), "larger than 8,388,608 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 50 else "",
)
def test_a_file_that_is_not_as_it_was_written_is_refused(tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecordError, match=message):
        read_record_file(path)


def test_a_link_is_not_followed(tmp_path):
    write_new(tmp_path / "run.json", TEXT)
    (tmp_path / "link.json").symlink_to(tmp_path / "run.json")
    with pytest.raises(RecordError, match="a link; put the file itself there"):
        read_record_file(tmp_path / "link.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_nobody_waits_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(RecordError, match="no ordinary file"):
        read_text(tmp_path / "pipe.json", most=10)


def test_what_is_not_there_is_said_so(tmp_path):
    with pytest.raises(RecordError, match=r"cannot be read .No such file"):
        read_text(tmp_path / "none", most=10)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_is_never_overwritten(tmp_path, monkeypatch, has_links):
    def refuse(*paths):
        raise PermissionError(1, "no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "new" / "run.json"
    write_new(path, "one")
    with pytest.raises(FileExistsError):
        write_new(path, "two")
    seen = iter([False, True])
    monkeypatch.setattr(os.path, "lexists", lambda path: next(seen))
    with pytest.raises(FileExistsError):  # Somebody else was quicker.
        write_new(path, "two")
    assert path.read_text() == "one"
    assert [each.name for each in path.parent.iterdir()] == ["run.json"]

"""Data of others: what is too large, too deep or no data is an error in one line."""

import json
import struct
import tomllib

import pytest

from tinytorch import reading
from tinytorch.errors import TinyTorchError
from tinytorch.reading import Limits, ReadingError, parse_json, read_header, read_json, read_toml

SMALL = Limits(nbytes=1000, depth=5, containers=10, items=20)


def header_file(path, table, payload=b"", length=None):
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + payload)
    return path


@pytest.mark.parametrize(
    "text",
    ["1", "[]", '{"a": [1, -2.5e10, null, true]}', '"\\u00e9"', "[[[[[]]]]]", "1" * 300, "1e308"],
)
def test_what_fits_is_what_json_reads(text):
    assert parse_json(text, SMALL) == json.loads(text)
    assert parse_json(text.encode(), SMALL) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[[[[[[]]]]]]",
        '{"a":' * 6 + "1" + "}" * 6,
        "[" * 900 + "]" * 90,
        "1" * 301,
        "-" + "1" * 400,
        "1e999",
        "-1e400",
        "9" * 400 + ".5",
        "[" + "1," * 21 + "1]",
        "[" + "[]," * 10 + "[]]",
        " " * 1001,
        "{",
        "",
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
    ],
)
def test_what_does_not_fit_is_an_error_in_one_line(text):
    with pytest.raises(ReadingError) as caught:
        parse_json(text, SMALL)
    assert isinstance(caught.value, TinyTorchError)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 1_000_000, "[" * 200_000 + "]" * 200_000, "1" * 100_000])
def test_the_usual_limits_hold_against_the_classics(text):
    with pytest.raises(ReadingError):
        parse_json(text)


def test_the_depth_is_exact():
    assert parse_json("[" * 5 + "]" * 5, SMALL) == [[[[[]]]]]
    with pytest.raises(ReadingError, match="5 deep"):
        parse_json("[" * 6 + "]" * 6, SMALL)


def test_a_larger_file_is_not_read_whole(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("[" + "1," * 10_000 + "1]")
    with pytest.raises(ReadingError, match="larger than 1,000 bytes"):
        read_json(file, SMALL)
    assert len(read_json(file, Limits(nbytes=1 << 20))) == 10_001


@pytest.mark.parametrize("name", ["there/is/none", "zero\0byte", "n" * 5000])
def test_a_name_that_cannot_be_opened_is_no_surprise(tmp_path, name):
    with pytest.raises((OSError, ReadingError)):
        read_json(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{b=" * 3000 + "1" + "}" * 3000,
        "a = " + "9" * 5000,
        "a = " + "9" * 400,
        ".".join(["a"] * 5000) + " = 1",
        "[" + ".".join(["a"] * 100) + "]",
        "a = 1\na = 2",
        "a = 2026-99-99",
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_toml_is_read_within_limits(tmp_path, text):
    file = tmp_path / "x.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ReadingError) as caught:
        read_toml(file)
    assert len(str(caught.value).splitlines()) == 1


def test_usual_toml_is_read(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[tool.x]\ndependencies = ["numpy==1.2.3", "rich==4.5.6"]\nn = 12\n')
    found = read_toml(file)
    assert found == {"tool": {"x": {"dependencies": ["numpy==1.2.3", "rich==4.5.6"], "n": 12}}}


@pytest.mark.parametrize(
    "text",
    [
        'x = "' + "a." * 300 + '"',
        "x = [" + "1.5, " * 300 + "]",
        "x = '" + "a." * 300 + "'",
        'x = """\n' + "a." * 300 + '\\""""',
        "x = 1 # " + "." * 300,
        'x = "\\"' + "a." * 300 + '"',
    ],
)
def test_dots_that_nest_nothing_are_read(tmp_path, text):
    file = tmp_path / "x.toml"
    file.write_text(text)
    assert read_toml(file) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 21) + " = 1",
        "[" + " . ".join(['"a"'] * 21) + "]",
        "x = '''\n\"'''\n" + ".".join(["a"] * 21) + " = 1",
        "x = {" + ".".join(["'a'"] * 21) + " = 1}",
    ],
)
def test_keys_that_nest_too_deep_are_refused_before_they_are_parsed(tmp_path, text, monkeypatch):
    file = tmp_path / "x.toml"
    file.write_text(text)
    assert tomllib.loads(text)
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it is parsed"))
    with pytest.raises(ReadingError, match="more than 20 deep"):
        read_toml(file)


@pytest.mark.parametrize("part", ['"""\\', "'''\"", "a", '"\\', "'\n", '"""\n'])
def test_the_dots_of_hostile_toml_are_counted_in_one_pass(tmp_path, part):
    file = tmp_path / "x.toml"
    file.write_text(part * ((1 << 20) // len(part)))
    with pytest.raises(ReadingError):
        read_toml(file)


def test_a_user_allows_larger_data_and_is_told_how(tmp_path, monkeypatch):
    small = Limits(nbytes=1000)
    monkeypatch.setattr(reading, "DATA", small)
    file = tmp_path / "x.json"
    file.write_text("[" + " " * 1500 + "]")
    with pytest.raises(ReadingError, match=r"1,000 bytes: it has 1,502.*TINYTORCH_READ_BYTES=1502"):
        read_json(file, small)
    monkeypatch.setenv("TINYTORCH_READ_BYTES", "1502")
    assert read_json(file, small) == []
    with pytest.raises(ReadingError, match="1,502 bytes: it has 1,503"):
        parse_json(" " * 1503, small)


ROW = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def test_the_header_of_a_safetensors_file_is_read(tmp_path):
    table = {"__metadata__": {"a": "b"}, "x": ROW}
    file = header_file(tmp_path / "x", table, b"1234")
    assert read_header(file) == table
    assert reading.read_metadata(file) == {"a": "b"}


@pytest.mark.parametrize(
    ("table", "length"),
    [
        ({"__metadata__": {"a": 1}}, None),
        ({"__metadata__": []}, None),
        ([], None),
        (b"[" * 5000, None),
        ({"x": ROW | {"data_offsets": [0, 5]}}, None),
        ({"x": ROW | {"data_offsets": [3, 1]}}, None),
        ({"x": ROW | {"data_offsets": [-1, 1]}}, None),
        ({"x": ROW | {"data_offsets": [0, "4"]}}, None),
        ({"x": []}, None),
        ({}, 2**63),
        ({}, 100),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, table, length):
    file = header_file(tmp_path / "x", table, b"1234", length)
    with pytest.raises(ReadingError):
        read_header(file)


def test_what_is_shown_of_others_has_no_control_codes_and_an_end():
    assert reading.shown("\x1b[2J\u202e") == "'\\x1b[2J\\u202e'"
    assert len(reading.shown("x" * 10_000)) < 100

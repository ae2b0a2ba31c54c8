"""Rounds: commit, reveal, and files."""

import hashlib
import json
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.rounds import (
    PRACTICE,
    Round,
    check_commitment,
    commitment_of,
    new_round,
    public_file_name,
    read_round,
    secret_file_name,
    write_round,
)
from tinytorch.errors import RecordError, SettingError

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", fullmatch=True)
SEEDS = st.binary(min_size=32, max_size=32).map(bytes.hex)


def test_the_commitment_is_the_hash_of_a_text_that_anybody_can_write_down():
    text = b"tinytorch round\nspring-2027\n" + b"ab" * 32
    assert commitment_of("spring-2027", "ab" * 32) == hashlib.sha256(text).hexdigest()


@given(NAMES, SEEDS)
def test_the_seed_that_was_committed_to_is_accepted(name, seed):
    found = Round(name, commitment_of(name, seed))
    assert not found.is_revealed
    assert found.reveal(seed).seed == seed


@given(NAMES, SEEDS, SEEDS)
def test_any_other_seed_is_refused(name, seed, other):
    found = Round(name, commitment_of(name, seed))
    if other == seed:
        return
    with pytest.raises(SettingError, match="does not fit the commitment"):
        check_commitment(found, other)
    with pytest.raises(SettingError, match="not the one that was drawn before the round"):
        found.reveal(other)


@given(NAMES, NAMES, SEEDS)
def test_a_seed_cannot_move_to_a_round_of_another_name(name, other, seed):
    if other == name:
        return
    with pytest.raises(SettingError, match="does not fit"):
        Round(other, commitment_of(name, seed), seed)


@given(st.text(max_size=80))
def test_only_64_small_hexadecimal_digits_are_a_seed(seed):
    with pytest.raises(SettingError, match="64 hexadecimal digits"):
        PRACTICE.public().reveal(seed)


def test_two_new_rounds_have_different_seeds_of_256_bits():
    one, two = new_round("one"), new_round("one")
    assert one.seed is not None
    assert two.seed is not None
    assert len(one.seed) == 64
    assert one.seed != two.seed
    assert one.commitment != two.commitment


def test_the_public_round_does_not_hold_the_seed():
    drawn = new_round("spring")
    public = drawn.public()
    assert public.seed is None
    assert (public.name, public.commitment) == (drawn.name, drawn.commitment)
    assert public.reveal(drawn.seed or "") == drawn


def test_a_seed_is_not_printed():
    drawn = new_round("spring")
    assert drawn.seed not in repr(drawn)


def test_the_seed_of_the_practice_round_is_public():
    assert PRACTICE.is_revealed
    assert commitment_of("practice", PRACTICE.seed or "") == PRACTICE.commitment


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "../a", "ä", "a\n", "a" * 65, None])
def test_a_name_is_letters_digits_and_dashes(name):
    with pytest.raises(SettingError, match="letters, digits and dashes"):
        new_round(name)


def test_the_name_practice_is_taken():
    with pytest.raises(SettingError, match="choose another name"):
        new_round("practice")


@pytest.mark.parametrize("commitment", ["", "ab", "G" * 64, "A" * 64, None])
def test_a_commitment_is_a_hash(commitment):
    with pytest.raises(SettingError, match="is no SHA-256"):
        Round("spring", commitment)


# ---------------------------------------------------------------- files


@pytest.fixture
def drawn():
    return new_round("spring", public_key="ssh-ed25519 AAAA")


def test_a_secret_file_gives_the_round_back_and_only_its_owner_reads_it(drawn, tmp_path):
    path = tmp_path / "rounds" / secret_file_name(drawn.name)
    write_round(drawn, path)
    assert read_round(path) == drawn
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "SECRET" in path.name
    assert json.loads(path.read_text())["warning"].startswith("SECRET")


def test_a_public_file_holds_no_seed(drawn, tmp_path):
    path = tmp_path / public_file_name(drawn.name)
    write_round(drawn.public(), path)
    assert read_round(path) == drawn.public()
    assert drawn.seed not in path.read_text()


def test_a_revealed_round_replaces_the_public_file(drawn, tmp_path):
    path = tmp_path / public_file_name(drawn.name)
    write_round(drawn.public(), path)
    write_round(drawn, path, reveal=True)
    assert read_round(path) == drawn
    assert "SECRET" not in path.read_text()


def test_a_secret_is_not_written_into_a_file_that_others_may_read(drawn, tmp_path):
    path = tmp_path / public_file_name(drawn.name)
    write_round(drawn.public(), path)
    with pytest.raises(RecordError, match="is there already"):
        write_round(drawn, path)
    assert drawn.seed not in path.read_text()


def test_a_seed_is_never_overwritten(drawn, tmp_path):
    path = tmp_path / "round.json"
    write_round(drawn, path)
    with pytest.raises(RecordError, match="would be lost"):
        write_round(drawn.public(), path)
    with pytest.raises(RecordError, match="holds another round, 'spring'"):
        write_round(new_round("summer"), path)
    assert read_round(path) == drawn


def test_another_file_is_never_overwritten(drawn, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text("{}")
    with pytest.raises(RecordError, match="is no round"):
        write_round(drawn.public(), path)
    assert path.read_text() == "{}"


def _changed(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": 2}, "schema is 2, this tinytorch reads 1; update tinytorch"),
        ({"schema": None}, "its schema is None"),
        ({"schema": True}, "its schema is True"),
        ({"format": "cookies"}, "format is not 'tinytorch competition round'"),
        ({"seed": "1" * 64}, "does not fit the commitment"),
        ({"seed": 7}, "Round.seed: expected text, got 7"),
        ({"name": "summer"}, "does not fit the commitment"),
        ({"commitment": "0" * 64}, "does not fit the commitment"),
        ({"created_at": "soon"}, "'soon' is no date"),
    ],
)
def test_a_changed_file_is_refused(drawn, tmp_path, fields, message):
    path = tmp_path / "round.json"
    write_round(drawn, path)
    _changed(path, **fields)
    with pytest.raises(RecordError, match=message):
        read_round(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not text"),
        (b"[]", "its format"),
        (b"[" * 60_000, "not JSON"),
        (b" " * 70_000, "larger than 65,536 bytes"),
        (b'{"format": "tinytorch competition round", "schema": 1}', "Round.name is missing"),
    ],
)
def test_what_is_no_round_is_refused(tmp_path, content, message):
    path = tmp_path / "round.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message):
        read_round(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"none\.json is no round: .*No such file"):
        read_round(tmp_path / "none.json")


def test_nobody_passes_off_another_seed_as_the_practice_round(drawn, tmp_path):
    path = tmp_path / "round.json"
    fake = replace(drawn, name="practice", seed=None)
    write_round(fake, path)
    with pytest.raises(RecordError, match="another commitment"):
        read_round(path)

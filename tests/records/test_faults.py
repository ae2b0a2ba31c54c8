import errno
import os
import sqlite3
from pathlib import Path

import pytest

from tinytorch.errors import RecordError
from tinytorch.records.sqlite import ADVICE, error_code, naming_faults, record_error

PATH = Path("records.sqlite")


def sqlite_error(code, kind=sqlite3.OperationalError):
    error = kind("what SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("code", ADVICE)
def test_every_fault_is_one_line_with_the_file_and_what_sqlite_says(code):
    words = str(record_error(PATH, sqlite_error(code)))
    assert words.startswith("records.sqlite ")
    assert words.endswith("(what SQLite says)")
    assert "\n" not in words
    assert ";" in words, "what was seen; what to do"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_BUSY, "locked by another process; wait"),
        (sqlite3.SQLITE_FULL, "the disk is full; make room"),
        (sqlite3.SQLITE_READONLY, "check the permissions"),
        (sqlite3.SQLITE_CORRUPT, "history --export"),
        (sqlite3.SQLITE_NOTADB, "is no database"),
        (sqlite3.SQLITE_IOERR, "check the disk"),
    ],
)
def test_the_advice_fits_the_fault(code, words):
    assert words in str(record_error(PATH, sqlite_error(code)))


def test_extended_codes_are_read_as_their_kind():
    error = sqlite_error(sqlite3.SQLITE_IOERR | 3 << 8)
    assert error_code(error) == sqlite3.SQLITE_IOERR


def test_an_unknown_fault_says_how_to_check():
    assert "history --check" in str(record_error(PATH, sqlite_error(sqlite3.SQLITE_MISMATCH)))


def test_wrong_use_is_not_blamed_on_the_file():
    error = sqlite3.ProgrammingError("Cannot operate on a closed database.")
    assert error_code(error) == 0
    assert "open the store again" in str(record_error(PATH, error))


def test_errors_of_the_system_are_named_too():
    error = OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert "Permission denied; name another file" in str(record_error(PATH, error))


def test_a_block_raises_our_error_and_keeps_the_cause():
    with pytest.raises(RecordError, match="full") as raised, naming_faults(PATH):
        raise sqlite_error(sqlite3.SQLITE_FULL)
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)


def test_other_errors_pass_a_block_unchanged():
    with pytest.raises(KeyError), naming_faults(PATH):
        raise KeyError("x")

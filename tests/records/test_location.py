import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.codec import encode
from tinytorch.records.location import Address, overwrite_arguments, refuge_path, store_path


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)


@pytest.fixture
def deep(tmp_path, monkeypatch):
    folder = tmp_path / "project" / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_store_belongs_to_the_project(deep, tmp_path, mark):
    (tmp_path / "project" / mark).touch()
    assert store_path() == tmp_path / "project" / ".tinytorch" / "records.sqlite"


def test_the_nearest_project_counts(deep, tmp_path):
    (tmp_path / "project" / ".git").mkdir()
    (deep.parent / "pyproject.toml").touch()
    assert store_path() == deep.parent / ".tinytorch" / "records.sqlite"


def test_without_a_project_it_is_the_working_directory(deep):
    assert not any((each / ".git").exists() for each in deep.parents), "of this machine"
    assert store_path() == deep / ".tinytorch" / "records.sqlite"


def test_the_variable_comes_before_the_project(deep, tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "mine.db"))
    assert store_path() == tmp_path / "mine.db"


def test_an_empty_variable_is_none(deep, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", "")
    assert store_path() == deep / ".tinytorch" / "records.sqlite"


def test_an_argument_comes_before_everything(deep, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", "elsewhere.db")
    assert store_path("here.db") == deep / "here.db"
    assert store_path(Path("~/x.db")) == Path.home() / "x.db"


def test_asking_creates_nothing(deep):
    store_path()
    assert list(deep.iterdir()) == []


def test_the_refuge_is_in_the_temporary_folder_and_of_one_user(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert refuge_path().parent == tmp_path
    assert refuge_path().suffix == ".jsonl"
    if hasattr(os, "getuid"):
        assert str(os.getuid()) in refuge_path().name


# ---------------------------------------------------------------- addresses, and their secrets

SECRETS = st.text(min_size=1, max_size=12).filter(lambda text: text.strip())
MARK = "s3cr3t"
SHAPES = [
    "postgresql://ann:{}@db.example:5432/perf",
    "postgresql://ann:{}@db.example/perf?sslmode=require",
    "postgres://ann:{}@/perf?host=/run/postgresql",
    "postgresql://db.example/perf?user=ann&password={}",
    "postgresql://db.example/perf?sslpassword={}&port=5432",
    "mlflow:https://ann:{}@mlflow.example/",
    "mlflow:https://mlflow.example/?token={}",
    "mlflow:https://mlflow.example/#{}",
    "mlflow:https://{}@mlflow.example/?x#y",
    "POSTGRESQL://ann:{}@db",
]


def test_what_names_a_server_is_an_address(monkeypatch):
    address = store_path("postgresql://ann:secret@db.example/perf?sslmode=require&password=x")
    assert isinstance(address, Address)
    assert address == "postgresql://ann:***@db.example/perf?sslmode=require&password=***"
    assert address.full.endswith("password=x")
    assert set(address.secrets) == {"secret", "x"}
    assert store_path(address) is address
    monkeypatch.setenv("TINYTORCH_RECORDS", "postgresql://ann:secret@db.example/perf")
    assert store_path().full == "postgresql://ann:secret@db.example/perf"


def test_a_name_without_a_password_is_shown():
    assert Address.of("postgresql://ann@db.example/perf") == "postgresql://ann@db.example/perf"


@pytest.mark.parametrize("shape", SHAPES)
@given(before=st.text(max_size=6), after=st.text(max_size=6), quoted=st.booleans())
def test_no_secret_is_ever_shown(shape, before, after, quoted):
    secret = f"{before}{MARK}{after}"
    if quoted or "&" in secret:
        secret = quote(secret, safe="")
    address = Address.of(shape.format(secret))
    shown = [str(address), repr(address), f"{address}", json.dumps({"store": address})]
    shown.append(str(encode({"store": address})))
    shown.append(address.safe_words(ValueError(f"cannot parse {address.full}")))
    shown.append(address.safe_words(ValueError(f"password {unquote(secret)} is wrong")))
    assert not any(MARK in each for each in shown)


@given(secret=SECRETS, error=st.text(max_size=30))
def test_words_of_another_library_are_shown_without_secrets_only(secret, error):
    address = Address.of(f"postgresql://ann:{quote(secret, safe='')}@db.example/perf")
    words = address.safe_words(ValueError(error))
    assert secret not in words or words == "ValueError"


# ---------------------------------------------------------------- arguments of this process


class Arguments:
    """Holds what stands for the arguments of this process, as ctypes reads and writes it."""

    def __init__(self, monkeypatch, *, stat=None, text=b"history --store postgresql://ann:pw@h/d"):
        fields = ["0"] * 43 + ["0", "0", "1000", str(1000 + len(text))]
        self.text, self.written = text, None
        self.stat = stat or f"1 (a name) with ) {' '.join(fields)}"
        monkeypatch.setattr(Path, "read_text", lambda *_: self.stat)
        monkeypatch.setattr(ctypes, "string_at", lambda start, size: self.text)
        monkeypatch.setattr(ctypes, "memmove", self.write)
        monkeypatch.setattr(sys, "platform", "linux")

    def write(self, start, text, size):
        assert (start, size) == (1000, len(text))
        self.written = text


def test_secrets_are_overwritten_and_all_else_stays(monkeypatch):
    arguments = Arguments(monkeypatch)
    overwrite_arguments(["pw", "", "elsewhere"])
    assert arguments.written == arguments.text.replace(b"pw", b"**")


@pytest.mark.parametrize("stat", ["1 (a) 2", "1 (a) " + "x " * 50, "1 (a) " + "0 " * 50])
def test_where_the_arguments_are_unknown_nothing_is_written(monkeypatch, stat):
    arguments = Arguments(monkeypatch, stat=stat)
    overwrite_arguments(["pw"])
    assert arguments.written is None


def test_without_a_secret_or_on_another_system_nothing_is_written(monkeypatch):
    arguments = Arguments(monkeypatch)
    overwrite_arguments([""])
    monkeypatch.setattr(sys, "platform", "darwin")
    overwrite_arguments(["pw"])
    assert arguments.written is None

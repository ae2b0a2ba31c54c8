"""Where records are: a file, or the address of a server, whose secrets are never shown."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self
from urllib.parse import unquote

STORE_VARIABLE = "TINYTORCH_RECORDS"
FOLDER, FILE = ".tinytorch", "records.sqlite"
MARKS_OF_A_PROJECT = (".git", "pyproject.toml")
POSTGRES = ("postgresql://", "postgres://")
MLFLOW = "mlflow:"
SCHEMES = (*POSTGRES, MLFLOW)
HIDDEN = "***"
HARMLESS = frozenset(
    ("host", "hostaddr", "port", "dbname", "user", "sslmode", "connect_timeout", "options")
)
"""Parameters of an address that are shown; the value of any other one may be a secret."""


class Address(str):
    """The address of a server, as it may be shown: as text it has no secret.

    >>> address = Address.of("postgresql://ann:secret@db.example/perf?sslmode=require")
    >>> print(address)
    postgresql://ann:***@db.example/perf?sslmode=require

    `full` is what connects.
    """

    __slots__ = ("_full",)

    _full: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the address for an URL, which may hold secrets."""
        made = cls(_without_secrets(text)[0])
        made._full = text
        return made

    @property
    def full(self) -> str:
        return self._full

    @property
    def secrets(self) -> tuple[str, ...]:
        """Everything in it that must not be shown, as it is written and as it is meant."""
        found = _without_secrets(self._full)[1]
        return tuple(dict.fromkeys(each for each in (*found, *map(unquote, found)) if each))

    def exists(self) -> bool:
        """Return True: whether a server is there, connecting shows."""
        return True

    def safe_words(self, error: BaseException) -> str:
        """Return the message of an error in one line, or its kind if the message has a secret."""
        words = " ".join(str(error).split())
        is_safe = words and not any(secret in str(error) for secret in (self._full, *self.secrets))
        return words if is_safe else type(error).__name__


Location = Path | Address
"""Where a store is: str() of it shows no secret, exists() says whether it may be there."""


def is_address(text: object) -> bool:
    """Return whether a text names a server."""
    return isinstance(text, Address) or (
        isinstance(text, str) and text.strip().lower().startswith(SCHEMES)
    )


def address_of(text: str) -> Address:
    return text if isinstance(text, Address) else Address.of(text.strip())


def store_path(path: str | os.PathLike[str] | None = None) -> Location:
    """Return where the records are, a path as an absolute one; nothing is created.

    Without a `path` it is what the environment variable ``TINYTORCH_RECORDS`` names, else
    ``.tinytorch/records.sqlite`` in the nearest folder, from the working directory upwards, that
    has ``.git`` or ``pyproject.toml``, else in the working directory.
    """
    chosen = path if path is not None else os.environ.get(STORE_VARIABLE)
    if isinstance(chosen, str) and is_address(chosen):
        return address_of(chosen)
    if chosen:
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    project = next((each for each in (here, *here.parents) if _is_project(each)), here)
    return project / FOLDER / FILE


def refuge_path() -> Path:
    """Return the file in the temporary folder for results that could not be stored.

    Each user has one, since a temporary folder is often shared.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"tinytorch-records-{user}.jsonl"


def _is_project(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS_OF_A_PROJECT)


def _without_secrets(text: str) -> tuple[str, list[str]]:
    """Return an address with its secrets hidden, and the secrets as they are written."""
    scheme, slashes, rest = text.partition("://")
    if not slashes:
        scheme, rest = "", text
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    if "@" in path:
        # A password that should have been quoted, perhaps: nothing is sure to be no part of it.
        return f"{scheme}{slashes}{HIDDEN}", [rest, *re.split("[/?#@:&=]", rest)]
    secrets: list[str] = []
    user, at, place = authority.rpartition("@")
    if at:
        name, colon, password = user.partition(":")
        if colon:
            secrets.append(password)
            user = f"{name}:{HIDDEN}"
        elif not scheme.lower().startswith("postgres"):
            secrets.append(user)  # a token
            user = HIDDEN
    path, mark, query = path.partition("?")
    path, fragment = _without_fragment(path, secrets)
    query, more = _without_fragment(query, secrets)
    shown = "&".join(_shown_parameter(each, secrets) for each in query.split("&")) if mark else ""
    return f"{scheme}{slashes}{user}{at}{place}{path}{fragment}{mark}{shown}{more}", secrets


def _without_fragment(text: str, secrets: list[str]) -> tuple[str, str]:
    kept, mark, fragment = text.partition("#")
    secrets += [fragment] if mark else []
    return kept, f"#{HIDDEN}" if mark else ""


def _shown_parameter(text: str, secrets: list[str]) -> str:
    name, equals, value = text.partition("=")
    if equals and name.lower() in HARMLESS:
        return text
    secrets.append(value if equals else text)
    return f"{name}={HIDDEN}" if equals else HIDDEN


def overwrite_arguments(secrets: Iterable[str]) -> None:
    """Overwrite secrets in the arguments of this process, which every user of the machine sees.

    On Linux only, and from now on only: PGPASSWORD or ~/.pgpass keep a password out of sight.
    """
    wanted = [secret.encode() for secret in secrets if secret]
    if not wanted or not sys.platform.startswith("linux"):
        return
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: 48 and 49 of proc(5)
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end:
        return
    shown = ctypes.string_at(start, end - start)
    for secret in wanted:
        shown = shown.replace(secret, b"*" * len(secret))
    ctypes.memmove(start, shown, end - start)

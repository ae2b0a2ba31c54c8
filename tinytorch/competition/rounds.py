"""Rounds: the seed of the private questions, committed to before and revealed after.

The organiser draws a seed, publishes the commitment (a hash of the round's name and the seed), runs
the entries, and reveals the seed. Then anyone can check that the questions were fixed before the
first entry came in, and reproduce them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tinytorch.codec import Coded
from tinytorch.competition.files import read_fields, write_new
from tinytorch.core.files import write_atomically
from tinytorch.errors import RecordError, SettingError
from tinytorch.records.record import utc_text

FORMAT, SCHEMA = "tinytorch competition round", 1
SEED_BYTES = 32
LARGEST_FILE_BYTES = 1 << 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
SECRET_WARNING = "SECRET until the round is over: whoever has the seed knows all questions"


@dataclass(frozen=True)
class Round(Coded):
    """One round of the competition. The seed is None where it is not known (yet).

    `public_key` is the organiser's, in OpenSSH's format, where verified records are signed.
    """

    name: str
    commitment: str
    seed: str | None = field(default=None, repr=False)
    created_at: str = ""
    public_key: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not _is_hexadecimal(self.commitment):
            raise SettingError(
                f"round {self.name!r}: the commitment {self.commitment!r} is no SHA-256; "
                "take the 64 letters and digits that the organiser has published"
            )
        if self.created_at:
            object.__setattr__(self, "created_at", utc_text(self.created_at))
        if self.seed is not None:
            check_commitment(self, self.seed)

    @property
    def is_revealed(self) -> bool:
        """Whether the seed is known here."""
        return self.seed is not None

    def public(self) -> Round:
        """Return what is published before the round: everything but the seed."""
        return replace(self, seed=None)

    def reveal(self, seed: str) -> Round:
        """Return the round with its seed; raise SettingError unless it matches the commitment."""
        return replace(self, seed=seed)


def commitment_of(name: str, seed: str) -> str:
    """Hash a round's name and seed, the text being ``tinytorch round``, name and seed in lines.

    >>> commitment_of("practice", "0" * 64)[:16]
    '47239c164e5313c5'
    """
    return hashlib.sha256(f"tinytorch round\n{name}\n{seed}".encode("ascii")).hexdigest()


def check_commitment(found: Round, seed: str) -> None:
    """Raise SettingError unless this is the seed that was committed to."""
    if not _is_hexadecimal(seed):
        raise SettingError(
            f"round {found.name!r}: a seed is 64 hexadecimal digits in small letters; "
            "copy it unchanged from the organiser's secret file"
        )
    if commitment_of(found.name, seed) != found.commitment:
        raise SettingError(
            f"round {found.name!r}: this seed does not fit the commitment "
            f"{found.commitment[:12]}...; it is not the one that was drawn before the round"
        )


def new_round(name: str, *, public_key: str = "") -> Round:
    """Draw the seed of a new round and commit to it."""
    _check_name(name)
    if name == PRACTICE.name:
        raise SettingError(f"{name!r} is the round with a public seed; choose another name")
    seed = secrets.token_hex(SEED_BYTES)
    return Round(name, commitment_of(name, seed), seed, utc_text(datetime.now(UTC)), public_key)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SettingError(
            f"a round cannot be called {name!r}; use up to 64 letters, digits and dashes, "
            "such as spring-2027"
        )


def _is_hexadecimal(text: object) -> bool:
    return isinstance(text, str) and HEXADECIMAL.fullmatch(text) is not None


PRACTICE_SEED = "0" * 64
PRACTICE = Round("practice", commitment_of("practice", PRACTICE_SEED), PRACTICE_SEED)
"""The round to practise in. Its seed is public, so its questions are, too."""


# ---------------------------------------------------------------- files


def public_file_name(name: str) -> str:
    """Return the name of the file that is published before the round and replaced after it."""
    return f"{name}.json"


def secret_file_name(name: str) -> str:
    """Return the name of the organiser's secret file."""
    return f"{name}.SECRET.json"


def write_round(written: Round, path: Path | str, *, reveal: bool = False) -> None:
    """Write a round to a file.

    With its seed it is a secret file, which only its owner may read and which is never overwritten;
    `reveal` publishes it. A file of another round is left alone, and so is a seed that
    would get lost.
    """
    path = Path(path)
    _check_nothing_is_lost(written, path)
    fields = {"format": FORMAT, "schema": SCHEMA, **written.to_dict()}
    if written.seed is None:
        del fields["seed"]
    elif not reveal:
        _write_secret({"warning": SECRET_WARNING, **fields}, path)
        return
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(fields, indent=2) + "\n", encoding="ascii")


def read_round(path: Path | str) -> Round:
    """Read a file that `write_round` wrote; raise RecordError for anything else."""
    try:
        place = Path(path).resolve()
        read = Round.from_dict(
            read_fields(place, most=LARGEST_FILE_BYTES, format=FORMAT, schema=SCHEMA)
        )
    except (RecordError, SettingError) as error:
        raise RecordError(f"{path} is no round: {error}") from error
    if read.name == PRACTICE.name and read.commitment != PRACTICE.commitment:
        raise RecordError(f"{path} calls itself {read.name!r} but has another commitment")
    return read


def _write_secret(fields: dict[str, object], path: Path) -> None:
    try:
        write_new(path, json.dumps(fields, indent=2) + "\n", mode=0o600)
    except FileExistsError as error:
        raise RecordError(
            f"{path} is there already, and others may read it; choose another file"
        ) from error


def _check_nothing_is_lost(written: Round, path: Path) -> None:
    if not path.exists():
        return
    there = read_round(path)
    if there.commitment != written.commitment:
        raise RecordError(f"{path} holds another round, {there.name!r}; choose another file")
    if there.seed is not None and written.seed is None:
        raise RecordError(
            f"{path} holds the seed of this round, which would be lost; choose another file"
        )

"""Read, write and hash entries: folders with a manifest and the files that it names.

Reading an entry executes nothing: the manifest is JSON (see `manifest.py`), and the files that it
names are hashed, never loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tinytorch.competition.cell.contender import Contender
from tinytorch.competition.entry import (
    MANIFEST,
    RESULTS,
    Entry,
    EntryError,
    check_file_name,
    entry_in,
    manifest_of,
    parse_manifest,
    shown,
)
from tinytorch.competition.techniques import resolved
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError
from tinytorch.records.record import canonical_json

__all__ = [
    "contender_of",
    "entry_files",
    "entry_in",
    "files_below",
    "hash_entry",
    "manifest_of",
    "parse_manifest",
    "read_entry",
    "write_entry",
]

LARGEST_MANIFEST_BYTES = 64 << 10
LARGEST_FILES_BYTES = 256 << 20
MOST_FILES = 1_000
COMPILED_COPIES = "__pycache__"


def read_entry(path: str | Path) -> Entry:
    """Give the entry of a folder or of the manifest in it; raise EntryError for what is none."""
    folder = _folder_of(Path(path))
    fields = parse_manifest(_read_manifest(folder))
    entry = replace(entry_in(fields), folder=folder)
    return replace(entry, sha256=hash_entry(entry))


def write_entry(entry: Entry, folder: str | Path) -> Path:
    """Write the manifest of an entry into a folder, and give its path; other files stay."""
    path = Path(folder) / MANIFEST
    text = json.dumps(manifest_of(entry), indent=2, ensure_ascii=False, allow_nan=False)
    with write_atomically(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")
    return path


def contender_of(entry: Entry, *, without: str | None = None) -> Contender:
    """Give how an entry is built, if wanted `without` one of its techniques.

    Techniques have their transforms written out; those of code are names that the code is told.
    """
    names = [each.name for each in entry.techniques]
    if without is not None and without not in names:
        known = ", ".join(names) or "none"
        raise SettingError(f"the entry declares no technique {without!r}; it declares {known}")
    left = tuple(each for each in entry.techniques if each.name != without)
    folder = Path(os.path.abspath(entry.folder))
    return Contender(
        entry.event,
        left if entry.code is not None else tuple(resolved(each) for each in left),
        weights=None if entry.weights is None else str(folder / entry.weights),
        code=None if entry.code is None else str(folder / entry.code),
    )


def entry_files(entry: Entry) -> tuple[str, ...]:
    """Give the names of all files of an entry but its manifest, relative to its folder, sorted.

    Without code that is the weights. With code it is everything in the folder that code may read:
    all but `results`, compiled copies and names that begin with a dot.
    """
    if entry.code is None:
        names = [] if entry.weights is None else [entry.weights]
    else:
        names = sorted(files_below(entry.folder))
        file = entry.code.rpartition(":")[0]
        if file not in names:
            raise EntryError("E1", f"there is no {shown(file)} beside {MANIFEST}", "add the file")
    return tuple(names)


def hash_entry(entry: Entry) -> str:
    """Give the SHA-256 of the manifest and of every file of an entry, which may not lie outside."""
    digests: dict[str, str] = {}
    total = 0
    for name in entry_files(entry):
        content = _read_file(entry.folder, name, most=LARGEST_FILES_BYTES - total)
        digests[name] = hashlib.sha256(content).hexdigest()
        total += len(content)
    text = canonical_json({"manifest": manifest_of(entry), "files": digests})
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# ---------------------------------------------------------------- the files


def _folder_of(path: Path) -> Path:
    try:
        real = Path(os.path.realpath(path))
        if real.is_dir():
            return real
        if path.name == MANIFEST and real.is_file():
            return Path(os.path.realpath(path.parent))
    except (OSError, ValueError) as error:
        raise EntryError("E1", f"{shown(str(path))} cannot be read: {error}") from error
    raise EntryError(
        "E1", f"there is no entry at {shown(str(path))}", f"give the folder of {MANIFEST}"
    )


def _read_manifest(folder: Path) -> bytes:
    if not os.path.lexists(folder / MANIFEST):
        raise EntryError("E1", f"there is no {MANIFEST} in {shown(str(folder))}")
    return _read_file(folder, MANIFEST, most=LARGEST_MANIFEST_BYTES)


def _read_file(folder: Path, name: str, *, most: int) -> bytes:
    """Read an ordinary file inside of a folder that is not too large."""
    try:
        real = Path(os.path.realpath(folder / name))
        if not real.is_relative_to(folder):
            raise EntryError(
                "E1", f"{shown(name)} is a link that leaves the folder", "copy the file"
            )
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            raise EntryError("E1", f"{shown(name)} is no ordinary file", "take it out")
        if status.st_size > most:
            raise EntryError(
                "E1", f"{shown(name)} has {status.st_size:,} bytes of {most:,}", "need less"
            )
        return real.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, EntryError):
            raise
        raise EntryError("E1", f"{shown(name)} cannot be read: {error}", "add the file") from error


def files_below(folder: Path) -> Iterator[str]:
    """Name every file below a folder that belongs to an entry; refuse links that leave it."""
    count = 0
    for place, folders, files in os.walk(folder):
        below = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if _belongs(below / name)]
        own = [(below / name).as_posix() for name in files if _belongs(below / name)]
        for path in (*own, *((below / name).as_posix() for name in folders)):
            check_file_name(path, "the name of a file")
            if not Path(os.path.realpath(folder / path)).is_relative_to(folder):
                raise EntryError("E1", f"{shown(path)} is a link that leaves the folder", "copy it")
        count += len(own)
        if count > MOST_FILES:
            raise EntryError("E1", f"it has more than {MOST_FILES:,} files", "need fewer")
        yield from own


def _belongs(path: Path) -> bool:
    """Tell whether a file or folder is hashed and handed in."""
    if path.name.startswith(".") or path.name == COMPILED_COPIES:
        return False
    return path != Path(MANIFEST) and path != Path(RESULTS)

"""An entry: who competes where, with which techniques. It is data, and reading it runs nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tinytorch import reading
from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS
from tinytorch.competition.rules import Finding, finding
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError, did_you_mean
from tinytorch.reading import HIDDEN, as_plain
from tinytorch.records.record import canonical_json

MANIFEST, RESULTS = "entry.json", "results"
FORMAT, SCHEMA = "tinytorch competition entry", 1
PRECISIONS = ("float32", "bfloat16", "float16", "int8", "int4")
"""From the most precise to the least."""

LONGEST_TEAM, LONGEST_NAME, LONGEST_PATH, LONGEST_TEXT, LONGEST_URL = 60, 40, 200, 2_000, 200
MOST_TECHNIQUES, MOST_TRANSFORMS, DEEPEST_SETTING = 20, 8, 4
LARGEST_NUMBER = 2**53
"""Beyond it, a number of JSON is not the same number everywhere."""

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
FUNCTION = re.compile(r"[A-Za-z_]\w*", re.ASCII)
URL = re.compile(r"https?://[!-~]+")
LINE_ENDS = ("Zl", "Zp")


class EntryError(SettingError):
    """What is no entry; `finding` says which rule it breaks, and `rule` is the rule's id."""

    def __init__(self, rule: str, seen: str, fix: str = "") -> None:
        self.finding: Finding = finding(rule, seen, fix)
        super().__init__(f"{rule}: {seen}; {self.finding.fix}")

    @property
    def rule(self) -> str:
        return self.finding.rule


@dataclass(frozen=True)
class Technique:
    """Something that an entry does and that can be switched off.

    `name` is small letters, digits and dashes. `transforms` are pairs of the name of a transform
    and its settings, as in a recipe. A technique of the catalog brings its own; one of Python code
    has none, and the code does it. Whether they are known is looked at by `techniques.py`.
    """

    name: str
    transforms: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def __post_init__(self) -> None:
        check_text(self.name, "a technique's name", most=LONGEST_NAME)
        if not NAME.fullmatch(self.name):
            raise EntryError(
                "E1",
                f"a technique is called {shown(self.name)}",
                "use small letters, digits and dashes, such as int8-dynamic",
            )
        where = f"technique {self.name}"
        if len(self.transforms) > MOST_TRANSFORMS:
            raise EntryError(
                "E1",
                f"{where} has {len(self.transforms)} transforms",
                f"use at most {MOST_TRANSFORMS}, or more techniques",
            )
        for name, settings in self.transforms:
            check_text(name, f"a transform of {where}", most=LONGEST_NAME)
            if not isinstance(settings, Mapping):
                raise EntryError(
                    "E1", f"{where}: the settings of {name} are no object", "give name: value"
                )
            _check_setting(settings, f"{where}: the settings of {name}", depth=0)


@dataclass(frozen=True)
class Entry:
    """What a team enters: weights in a safe format and declared techniques, or code.

    `precision` is the least precise kind of number in products ("float32", "bfloat16", "float16",
    "int8", "int4"). `weights` is a file beside the manifest: a checkpoint of the reference's
    architecture, or what `save_optimized` wrote; None means those of the reference. `code` is
    ``file.py:make`` beside the manifest. `folder` is where the files are, `sha256` the hash of the
    manifest and of them (`hash_entry`).
    """

    team: str
    event: str
    division: str
    tier: float
    techniques: tuple[Technique, ...] = ()
    precision: str = "float32"
    weights: str | None = None
    code: str | None = None
    description: str = ""
    url: str = ""
    folder: Path = field(default=Path(), compare=False)
    sha256: str = ""

    def __post_init__(self) -> None:
        _check_team(self.team)
        _check_choice(self.event, "event", EVENTS)
        _check_choice(self.division, "division", DIVISIONS)
        _check_choice(self.tier, "tier", TIERS)
        _check_choice(self.precision, "precision", PRECISIONS)
        _check_techniques(self.techniques)
        if self.weights is not None:
            check_file_name(self.weights, "weights")
        if self.code is not None:
            _check_code(self.code)
        if self.weights is not None and self.code is not None:
            raise EntryError(
                "E1",
                "it has weights and code",
                "give one of them; code reads what it needs from the files beside it",
            )
        check_text(self.description, "description", most=LONGEST_TEXT, has_lines=True)
        check_text(self.url, "url", most=LONGEST_URL)
        if self.url and not URL.fullmatch(self.url):
            raise EntryError("E1", f"url is {shown(self.url)}", "give https://..., or nothing")


def shown(value: object) -> str:
    """Show anything in one short line that is safe in a terminal."""
    try:
        text = repr(value)  # which writes what cannot be seen, or turns the line, in numbers
    except (ValueError, RecursionError):  # a number with thousands of digits; a list in itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_TEAM else f"{text[: LONGEST_TEAM - 3]}..."


def check_text(text: object, what: str, *, most: int, has_lines: bool = False) -> None:
    """Raise unless this is plain text: no control characters, none that turn or hide others."""
    if not isinstance(text, str):
        raise EntryError("E1", f"{what} is {shown(text)}", "give text in quotes")
    if len(text) > most:
        raise EntryError("E1", f"{what} has {len(text):,} characters", f"use at most {most:,}")
    for letter in text:
        kind = unicodedata.category(letter)
        if (kind[0] == "C" or kind in LINE_ENDS) and not (has_lines and letter == "\n"):
            raise EntryError(
                "E1", f"{what} holds U+{ord(letter):04X}, which cannot be seen", "use plain text"
            )


def check_file_name(name: object, what: str) -> None:
    """Raise unless this names a file below the entry's folder, on every system."""
    check_text(name, what, most=LONGEST_PATH)
    assert isinstance(name, str)
    parts = PurePosixPath(name).parts
    is_odd = name != "/".join(parts) or any(letter in name for letter in '\\:*?"<>|')
    if not parts or is_odd or name.startswith("/") or ".." in parts or parts[0] == RESULTS:
        raise EntryError(
            "E1",
            f"{what} is {shown(name)}",
            f"name a file in the folder of {MANIFEST} or below, but not in {RESULTS}/",
        )


def _check_team(team: object) -> None:
    check_text(team, "team", most=LONGEST_TEAM)
    assert isinstance(team, str)
    if team != team.strip() or not any(letter.isalnum() for letter in team):
        raise EntryError("E1", f"team is {shown(team)}", "give a name, without spaces around it")
    if "/" in team or "\\" in team:
        raise EntryError("E1", f"team is {shown(team)}", "leave out / and \\")


def _check_choice(value: object, what: str, choices: Iterable[str | float]) -> None:
    """Raise unless a value is one of the choices, and not merely equal to one."""
    if any(type(value) is type(each) and value == each for each in choices):
        return
    listed = ", ".join(str(each) for each in choices)
    raise EntryError("E2", f"{what} is {shown(value)}", f"there are {listed}")


def _check_techniques(techniques: tuple[Technique, ...]) -> None:
    if len(techniques) > MOST_TECHNIQUES:
        raise EntryError(
            "E1", f"it has {len(techniques)} techniques", f"declare at most {MOST_TECHNIQUES}"
        )
    names = [each.name for each in techniques]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EntryError("E1", f"the technique {twice} is declared twice", "declare it once")


def _check_code(code: object) -> None:
    check_text(code, "code", most=LONGEST_PATH)
    assert isinstance(code, str)
    file, _, function = code.rpartition(":")
    if not file.endswith(".py") or not FUNCTION.fullmatch(function):
        raise EntryError(
            "E1",
            f"code is {shown(code)}",
            "name a file and a function of it, such as model.py:make",
        )
    check_file_name(file, "the file in code")
    if "/" in file:
        raise EntryError("E1", f"code is {shown(code)}", f"put the file beside {MANIFEST}")


def _check_setting(value: object, where: str, *, depth: int) -> None:
    """Raise unless this is a setting: a finite number, text, or a few levels of them."""
    if depth > DEEPEST_SETTING:
        raise EntryError("E1", f"{where} are nested too deeply", "settings are flat")
    if isinstance(value, str):
        check_text(value, where, most=LONGEST_PATH)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        if not (math.isfinite(value) if isinstance(value, float) else True) or (
            abs(value) > LARGEST_NUMBER
        ):
            raise EntryError("E1", f"{where} hold {shown(value)}", "give a finite, usual number")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            check_text(name, f"{where}: a name", most=LONGEST_NAME)
            _check_setting(each, where, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_setting(each, where, depth=depth + 1)
    else:
        raise EntryError("E1", f"{where} hold a {type(value).__name__}", "give numbers and text")


# ---------------------------------------------------------------- text that others wrote and that
# will be shown: what may stand in it


def as_plain_fields(value: Any) -> Any:
    """Do so in every text of a description in JSON, the names of its fields included."""
    if isinstance(value, str):
        return as_plain(value)
    if isinstance(value, Mapping):
        return {as_plain_fields(name): as_plain_fields(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain_fields(each) for each in value]
    return value


def find_hidden_letter(value: Any) -> str | None:
    """Return the first such character in any string of a JSON value, escaped in ASCII, or None."""
    waiting = [value]  # No recursion: values may be nested to any depth.
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            found = None if each.isprintable() else HIDDEN.search(each)
            if found is not None:
                return ascii(found.group())
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
    return None


def visible_path(path: str) -> str:
    """Write a path so that every letter of it can be seen, and so that it is one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in path)


# ---------------------------------------------------------------- the manifest of an entry,
# ``entry.json``: its format, and between it and an Entry
#
# It is one object of JSON in UTF-8, of at most 64 KiB. The fields, of which the first six are
# needed::
#
# { "format": "tinytorch competition entry", "schema": 1, "team": "Team Ada", plain text that others
# see, at most 60 characters "event": "mlp_sprint", or "cnn_marathon", "transformer_decathlon"
# "division": "closed", or "open", "learner" "tier": 0.99, or 0.999: the share of the reference's
# accuracy to keep "techniques": [ "fused-layers", a name of the catalog, or "kv-cache" {"name":
# "careful-int8", or one's own name for transforms with their settings "transforms": [{"transform":
# "Quantize", "settings": {"max_error": 0.01}}]} ], "precision": "int8", the least precise kind of
# number in products: "float32" unless given, "bfloat16", "float16", "int8", "int4" "weights":
# "model.safetensors", a checkpoint, or what `save_optimized` wrote; without it, or with null, the
# reference's "code": "model.py:make", instead of weights: a function of a file "description":
# "...", plain text of at most 2,000 characters "url": "https://..." }
#
# Techniques are applied in this order. With code, they are names of one's own without transforms,
# which ``make(reference, techniques)`` is told. Nothing else may be in a manifest.

NEEDED = ("format", "schema", "team", "event", "division", "tier")
OPTIONAL = ("techniques", "precision", "weights", "code", "description", "url")
START_AGAIN = "look at the file, or write a new one with `tinytorch compete new`"


def manifest_of(entry: Entry) -> dict[str, Any]:
    """Return the manifest of an entry in its canonical form, which is what is hashed."""
    fields: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA}
    fields |= {name: getattr(entry, name) for name in (*NEEDED[2:], *OPTIONAL)}
    fields["techniques"] = [_technique_fields(each) for each in entry.techniques]
    return fields


def entry_in(fields: object) -> Entry:
    """Return the entry of a manifest, without folder and hash; raise EntryError if invalid."""
    if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
        raise EntryError("E1", f"it is no manifest: its format is not {FORMAT!r}")
    _check_schema(fields.get("schema"))
    missing = [name for name in NEEDED if name not in fields]
    if missing:
        raise EntryError("E1", f"the manifest lacks {', '.join(missing)}", "add what is missing")
    _check_known(fields, (*NEEDED, *OPTIONAL), "the manifest")
    given = {name: fields[name] for name in (*NEEDED[2:], *OPTIONAL) if name in fields}
    given["techniques"] = _techniques_in(given.get("techniques", []))
    return Entry(**given)


def parse_manifest(content: bytes) -> Any:
    """Parse the bytes of a manifest; raise EntryError unless they are strict JSON."""
    try:
        return reading.parse_json(
            content, reading.SETTINGS, parse_constant=_refuse_constant, object_pairs_hook=_object
        )
    except ValueError as error:
        raise EntryError("E1", f"{MANIFEST} is no JSON: {error}", START_AGAIN) from error


def _technique_fields(technique: Technique) -> str | dict[str, Any]:
    if not technique.transforms:
        return technique.name
    transforms = [
        {"transform": name, "settings": dict(settings)} for name, settings in technique.transforms
    ]
    return {"name": technique.name, "transforms": transforms}


def _check_schema(schema: object) -> None:
    if type(schema) is not int or schema < 1:
        raise EntryError("E1", f"schema is {shown(schema)}", f"write {SCHEMA}")
    if schema > SCHEMA:
        raise EntryError(
            "E1",
            f"schema is {shown(schema)}, and this TinyTorch reads {SCHEMA}",
            "update TinyTorch",
        )


def _check_known(fields: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in fields:
        if name not in known:
            raise EntryError(
                "E1", f"{what} has an unknown field {shown(name)}", did_you_mean(name, known)
            )


def _techniques_in(fields: object) -> tuple[Technique, ...]:
    if not isinstance(fields, list):
        raise EntryError("E1", f"techniques is {shown(fields)}", "give a list in [ ]")
    return tuple(_technique_in(each) for each in fields)


def _technique_in(fields: object) -> Technique:
    if isinstance(fields, str):
        return Technique(fields)
    if not isinstance(fields, Mapping) or "name" not in fields:
        raise EntryError(
            "E1",
            f"a technique is {shown(fields)}",
            'give a name, or {"name": ..., "transforms": ...}',
        )
    _check_known(fields, ("name", "transforms"), "a technique")
    transforms = fields.get("transforms", [])
    if not isinstance(transforms, list):
        raise EntryError("E1", f"transforms is {shown(transforms)}", "give a list in [ ]")
    return Technique(fields["name"], tuple(_transform_in(each) for each in transforms))


def _transform_in(fields: object) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(fields, Mapping) or "transform" not in fields:
        raise EntryError(
            "E1", f"a transform is {shown(fields)}", 'give {"transform": ..., "settings": {...}}'
        )
    _check_known(fields, ("transform", "settings"), "a transform")
    return fields["transform"], fields.get("settings", {})


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one name twice")
    return found


# ---------------------------------------------------------------- the folder of an entry: its
# manifest and the files that it names, which are hashed and never loaded

LARGEST_MANIFEST_BYTES = 64 << 10
LARGEST_FILES_BYTES = 256 << 20
MOST_FILES = 1_000
COMPILED_COPIES = "__pycache__"


def read_entry(path: str | Path) -> Entry:
    """Read the entry of a folder, or of its manifest; raise EntryError if it is invalid."""
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


def entry_files(entry: Entry) -> tuple[str, ...]:
    """Return the sorted names of all files of an entry except its manifest, relative to its folder.

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
    """Return the SHA-256 of the manifest and of every file, none of which may lie outside."""
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
    """Yield every file below a folder that belongs to an entry; raise for links that leave it."""
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
    """Return whether a file or folder is part of an entry."""
    if path.name.startswith(".") or path.name == COMPILED_COPIES:
        return False
    return path != Path(MANIFEST) and path != Path(RESULTS)

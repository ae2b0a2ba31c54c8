"""One codec for results and settings: dataclasses as plain JSON data, and back by their type hints.

:func:`encode` takes whatever a result holds: dataclasses, tuples, mappings, enums, NumPy's numbers
and arrays, paths. A number that is not finite becomes None. :func:`decode` reads an object as a
dataclass and says where it does not fit: ``Comparison.rounds[3].baseline: expected a list, got 7``.

A dataclass that derives from :class:`Coded` has both as methods, and says in its attributes where
its JSON differs from its fields. How a class is written and read is worked out on first use.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from tinytorch.errors import Note, RecordError

T = TypeVar("T")
Convert = Callable[[Any], Any]
Row = tuple[str, str, Convert, bool]


class Coded:
    """A dataclass that is written as JSON and read back by its fields.

    Keys stand in the order of the fields. A field that is missing in the data gets its default, and
    unknown fields are ignored, so that files of other versions can be read.
    """

    __slots__ = ()

    schema: ClassVar[int | None] = None
    """The version of the format, written as ``schema``; None for a class without one of its own."""
    upgrades: ClassVar[Mapping[int, Callable[[dict[str, Any]], Mapping[str, Any]]]] = {}
    """Version -> what turns the fields of that version into those of the next."""
    also_written: ClassVar[tuple[str, ...]] = ()
    """Properties that are written, too, before the fields; a field among them is written there.
    ``interval.low`` is written as ``low``, and is None where the interval is. They are not read:
    conclusions are drawn again."""
    renames: ClassVar[Mapping[str, str | None]] = {}
    """Attribute -> its key in the JSON, where it is another one; None where it is not written."""
    none_means: ClassVar[Mapping[str, float]] = {}
    """Field -> the number that a None in the data stands for, such as infinity."""
    nonfinite: ClassVar[Literal["none", "text"]] = "none"
    """How numbers that are not finite are written: as None, or as text ("nan", "inf", "-inf")."""
    strict: ClassVar[bool] = False
    """Whether unknown fields, and true and false among numbers, are errors: under a hash, all of
    the data counts."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        return _written_fields(type(self))(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_dict` wrote; raise DataError where it does not fit."""
        return _read_at(cls.__name__, _read_fields(cls), fields)

    @classmethod
    def upgraded(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of an older version as this one has them."""
        if cls.schema is None:
            return fields
        version: Any = fields.get("schema")
        while type(version) is int and version in cls.upgrades:
            fields = {**cls.upgrades[version](dict(fields)), "schema": version + 1}
            version += 1
        if type(version) is not int or version != cls.schema:
            raise DataError(f"{cls.schema} (newer ones need a newer tinytorch)", version, "schema")
        return fields


def encode(value: Any) -> Any:
    """Return a value as plain JSON data; raise TypeError for what has no form in JSON."""
    kind = type(value)
    encoder = ENCODERS.get(kind)
    if encoder is None:
        encoder = ENCODERS[kind] = _encoder_of(kind)
    return encoder(value)


def decode(kind: type[T], data: Any) -> T:
    """Return the instance of a class that `data` describes; raise DataError where none fits."""
    found: T = _read_at(kind.__name__, _decoder_of(kind), data)
    return found


class DataError(RecordError, ValueError):
    """Data that is not what its type hint says: where, what is expected, and what was found."""

    def __init__(self, expected: str, found: Any, *path: str | int) -> None:
        super().__init__(expected, found, *path)
        self.expected = expected
        self.found = found
        self.path: list[str | int] = [*path]

    def at(self, place: str | int) -> DataError:
        """Return the same, seen from the object around it."""
        self.path.insert(0, place)
        self.args = (self.expected, self.found, *self.path)
        return self

    def __str__(self) -> str:
        where = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in self.path)
        where = where.removeprefix(".")
        if self.found is MISSING:
            return f"{where} is missing"
        text = repr(self.found)
        return f"{where}: expected {self.expected}, got {text if len(text) < 80 else text[:76]}"


def _read_at(name: str, decoder: Convert, data: Any) -> Any:
    try:
        return decoder(data)
    except DataError as misfit:
        raise misfit.at(name) from None


# ---------------------------------------------------------------- writing


def _as_it_is(value: Any) -> Any:
    return value


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _are_numbers(values: Any) -> bool:
    """Tell finite numbers of Python by their sum: the usual case are thousands of times."""
    try:
        total = sum(values, 0.0)
    except (TypeError, OverflowError):
        return False
    return type(total) is float and math.isfinite(total)


def _items(values: Any) -> list[Any]:
    return list(values) if _are_numbers(values) else [encode(each) for each in values]


def _entries(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {_key(key): encode(each) for key, each in values.items()}


def _key(key: Any) -> str:
    """Write a key: 2.0 as "2", infinity as "inf"."""
    return f"{key:g}" if isinstance(key, float) else str(key)


ENCODERS: dict[type, Convert] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    int: _as_it_is,
    str: _as_it_is,
    float: _finite,
    tuple: _items,
    list: _items,
    dict: _entries,
}
"""Type -> how its values are written; others are added as they are met."""
# For subclasses of these; what is first in the list wins.
BY_BASE: tuple[tuple[type, Convert], ...] = (
    (Enum, lambda value: encode(value.value)),
    (str, str),
    (int, int),
    (float, _finite),
    (os.PathLike, os.fsdecode),
    (Mapping, _entries),
    (tuple, _items),
    (list, _items),
    (Set, lambda values: _items(sorted(values))),
)


def _encoder_of(kind: type) -> Convert:
    own: Convert | None = getattr(kind, "to_dict", None)
    if own is not None and own is not Coded.to_dict:
        return own
    if is_dataclass(kind):
        return _written_fields(kind)
    if hasattr(kind, "tolist"):  # numbers and arrays of NumPy
        return lambda value: encode(value.tolist())
    found = next((encoder for base, encoder in BY_BASE if issubclass(kind, base)), None)
    if found is None:
        raise TypeError(
            f"{kind.__name__} has no form in JSON; give numbers, text, lists or mappings"
        )
    return found


WRITTEN: dict[type, Convert] = {}
"""Dataclass -> how its fields are written."""


def _written_fields(kind: type) -> Convert:
    if kind not in WRITTEN:
        WRITTEN[kind] = _compile_written(kind)
    return WRITTEN[kind]


def _compile_written(kind: type) -> Convert:
    names = dict.fromkeys((*_of(kind, "also_written"), *(each.name for each in fields(kind))))
    renames = _of(kind, "renames")
    keys = [(renames.get(name, name.rpartition(".")[2]), _getter(name)) for name in names]
    rows = [(key, get) for key, get in keys if key is not None]
    schema = _of(kind, "schema")
    start = {} if schema is None else {"schema": schema}
    convert = _spelled if _of(kind, "nonfinite") == "text" else encode

    def write(value: Any) -> dict[str, Any]:
        found = {key: convert(get(value)) for key, get in rows}
        return {**start, **found} if start else found

    return write


def _getter(name: str) -> Convert:
    first, _, rest = name.partition(".")
    if not rest:
        return attrgetter(name)
    outer, inner = attrgetter(first), _getter(rest)

    def get(value: Any) -> Any:
        found = outer(value)
        return None if found is None else inner(found)

    return get


def _spelled(value: Any) -> Any:
    """Write a number that is not finite as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return [_spelled(each) for each in value] if isinstance(value, tuple) else encode(value)


def _of(kind: type, name: str) -> Any:
    """Return what a class says about its JSON; other dataclasses say nothing."""
    return getattr(kind if issubclass(kind, Coded) else Coded, name)


# ---------------------------------------------------------------- reading


def _reader(kinds: Any, expected: str) -> Convert:
    exact = kinds if isinstance(kinds, tuple) else (kinds,)

    def read(value: Any) -> Any:
        if type(value) in exact:
            return value
        if isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool)):
            return value
        raise DataError(expected, value)

    return read


def _none(value: Any) -> None:
    if value is not None:
        raise DataError("null", value)


READERS: dict[Any, Convert] = {
    Any: _as_it_is,
    object: _as_it_is,
    type(None): _none,
    bool: _reader(bool, "true or false"),
    int: _reader(int, "a whole number"),
    float: _reader((int, float), "a number"),
    str: _reader(str, "text"),
}
"""Hint -> how it is read; dataclasses are added as they are met."""
AN_OBJECT = _reader(Mapping, "an object")
A_LIST = _reader((list, tuple), "a list")
NOT_FINITE = ("nan", "inf", "-inf")


def _decoder_of(hint: Any, *, strict: bool = False) -> Convert:
    if hint in READERS:
        return READERS[hint]
    origin, inside = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return _read_either([_decoder_of(each, strict=strict) for each in inside])
    if origin is Literal:
        return _read_choice(inside, inside)
    return _class_decoder(origin, inside, strict=strict)


def _class_decoder(kind: type, inside: tuple[Any, ...], *, strict: bool) -> Convert:
    own = getattr(kind, "from_dict", None)
    if own is not None and own.__func__ is not vars(Coded)["from_dict"].__func__:
        found: Convert = own
    elif issubclass(kind, Note):
        found = _read_note(kind)
    elif is_dataclass(kind):
        found = _read_fields(kind)
    elif issubclass(kind, Enum):
        found = _read_choice([each.value for each in kind], list(kind))
    elif issubclass(kind, Mapping):
        found = _read_entries(_decoder_of(inside[1], strict=strict)) if inside else AN_OBJECT
    elif kind is tuple and inside and inside[-1] is not Ellipsis:
        found = _read_tuple([_decoder_of(each) for each in inside])
    elif issubclass(kind, Collection) and inside and not hasattr(kind, "tolist"):
        made = kind if kind in (list, frozenset) else tuple
        found = _read_items(_decoder_of(inside[0]), made, strict=strict)
    elif issubclass(kind, os.PathLike):
        found = _read_path
    elif hasattr(kind, "tolist"):
        found = _read_array
    else:
        raise TypeError(f"{kind.__name__} cannot be read from JSON")
    return found


def _read_either(readers: Sequence[Convert]) -> Convert:
    others = [each for each in readers if each is not _none]

    def read(value: Any) -> Any:
        if value is None and len(others) < len(readers):
            return None
        for reader in others[:-1]:
            try:
                return reader(value)
            except DataError:
                continue
        return others[-1](value)

    return read


def _read_choice(values: Sequence[Any], members: Sequence[Any]) -> Convert:
    def read(value: Any) -> Any:
        if value not in values:
            raise DataError(f"one of {', '.join(map(repr, values))}", value)
        return members[values.index(value)]

    return read


def _read_entries(reader: Convert) -> Convert:
    if reader is _as_it_is:
        return AN_OBJECT

    def read(values: Any) -> dict[str, Any]:
        found = {}
        for key, value in AN_OBJECT(values).items():
            try:
                found[key] = reader(value)
            except DataError as misfit:
                raise misfit.at(key) from None
        return found

    return read


def _read_items(reader: Convert, kind: Convert, *, strict: bool) -> Convert:
    def read(values: Any) -> Any:
        given = A_LIST(values)
        found: list[Any] = []
        try:
            found.extend(map(reader, given))
        except DataError as misfit:
            raise misfit.at(len(found)) from None
        return kind(found)

    if reader is not READERS[float]:
        return read

    def read_numbers(values: Any) -> Any:
        are_numbers = type(values) is list and _are_numbers(values)
        if not are_numbers or (strict and bool in map(type, values)):
            return read(values)
        return kind(values)

    return read_numbers


def _read_tuple(readers: Sequence[Convert]) -> Convert:
    def read(values: Any) -> tuple[Any, ...]:
        given = A_LIST(values)
        if len(given) != len(readers):
            raise DataError(f"a list of {len(readers)}", values)
        found: list[Any] = []
        try:
            found.extend(reader(value) for reader, value in zip(readers, given, strict=True))
        except DataError as misfit:
            raise misfit.at(len(found)) from None
        return tuple(found)

    return read


def _read_note(kind: type[Note]) -> Convert:
    """Read a note; former versions wrote the words alone."""
    reader = _compile_read(kind)
    READERS[kind] = lambda value: kind(value) if isinstance(value, str) else reader(value)
    return READERS[kind]


def _read_path(value: Any) -> Path:
    return Path(READERS[str](value))


def _read_array(value: Any) -> Any:
    import numpy as np

    return np.asarray(A_LIST(value))


def _read_spelled(reader: Convert) -> Convert:
    """Read numbers of which those that are not finite are text."""

    def read(value: Any) -> Any:
        is_list = isinstance(value, list)
        return reader([_unspelled(each) for each in value] if is_list else _unspelled(value))

    return reader if reader is READERS[str] else read


def _unspelled(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def _read_or(reader: Convert, number: float) -> Convert:
    return lambda value: number if value is None else reader(value)


def _read_fields(kind: type) -> Convert:
    if kind not in READERS:
        READERS[kind] = _compile_read(kind)
    return READERS[kind]


def _compile_read(kind: type) -> Convert:
    rows: list[Row] = []
    upgraded, strict = _of(kind, "upgraded"), _of(kind, "strict")
    is_versioned = upgraded.__func__ is not vars(Coded)["upgraded"].__func__ or _of(kind, "schema")

    def read(data: Any) -> Any:
        if not rows:  # Not before: hints may form circles.
            rows.extend(_rows(kind))
        if type(data) is not dict:
            AN_OBJECT(data)
        if is_versioned:
            data = upgraded(data)
        given = {}
        key = ""
        try:
            for key, name, reader, has_default in rows:
                if key in data:
                    given[name] = reader(data[key])
                elif not has_default:
                    raise DataError("", MISSING)
        except DataError as misfit:
            raise misfit.at(key) from None
        if strict and (unknown := data.keys() - {row[0] for row in rows} - {"schema"}):
            raise DataError("no such field", data[min(unknown)], min(unknown))
        return kind(**given)

    return read


def _hint(kind: type, name: str) -> Any:
    """Resolve the hint of one field; others may name what is imported for type checks alone."""
    owner = next(each for each in kind.__mro__ if name in vars(each).get("__annotations__", ()))
    hint = owner.__annotations__[name]
    return eval(hint, vars(sys.modules[owner.__module__])) if isinstance(hint, str) else hint


def _rows(kind: type) -> list[Row]:
    """Return the keys, with the name of the field, how it is read, whether it may be missing."""
    renames, none_means = _of(kind, "renames"), _of(kind, "none_means")
    rows = []
    for each in fields(kind):
        key = renames.get(each.name, each.name)
        if key is None or not each.init:
            continue
        reader = _decoder_of(_hint(kind, each.name), strict=_of(kind, "strict"))
        if _of(kind, "nonfinite") == "text":
            reader = _read_spelled(reader)
        if each.name in none_means:
            reader = _read_or(reader, none_means[each.name])
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        rows.append((key, each.name, reader, has_default))
    return rows

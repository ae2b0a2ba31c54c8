"""The manifest of an entry, ``entry.json``: its format, and between it and an Entry.

It is one object of JSON in UTF-8, of at most 64 KiB. The fields, of which the first six are
needed::

    {
      "format": "tinytorch competition entry",
      "schema": 1,
      "team": "Team Ada",                  plain text that others see, at most 60 characters
      "event": "mlp_sprint",               or "cnn_marathon", "transformer_decathlon"
      "division": "closed",                or "open", "learner"
      "tier": 0.99,                        or 0.999: the share of the reference's accuracy to keep
      "techniques": [
        "fused-layers",                    a name of the catalog, or "kv-cache"
        {"name": "careful-int8",           or one's own name for transforms with their settings
         "transforms": [{"transform": "Quantize", "settings": {"max_error": 0.01}}]}
      ],
      "precision": "int8",                 the least precise kind of number in products: "float32"
                                           unless given, "bfloat16", "float16", "int8", "int4"
      "weights": "model.safetensors",      a checkpoint, or what `save_optimized` wrote; without it,
                                           or with null, the reference's
      "code": "model.py:make",             instead of weights: a function of a file
      "description": "...",                plain text of at most 2,000 characters
      "url": "https://..."
    }

Techniques are applied in this order. With code, they are names of one's own without transforms,
which ``make(reference, techniques)`` is told. Nothing else may be in a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tinytorch.competition.entries.entry import (
    FORMAT,
    MANIFEST,
    SCHEMA,
    Entry,
    EntryError,
    Technique,
    shown,
)

__all__ = ["entry_in", "manifest_of", "parse_manifest"]

NEEDED = ("format", "schema", "team", "event", "division", "tier")
OPTIONAL = ("techniques", "precision", "weights", "code", "description", "url")
START_AGAIN = "look at the file, or write a new one with `tinytorch compete new`"


def manifest_of(entry: Entry) -> dict[str, Any]:
    """Give the manifest of an entry, in the one form that is hashed."""
    fields: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA}
    fields |= {name: getattr(entry, name) for name in (*NEEDED[2:], *OPTIONAL)}
    fields["techniques"] = [_technique_fields(each) for each in entry.techniques]
    return fields


def entry_in(fields: object) -> Entry:
    """Give the entry of a manifest, without a folder or a hash; raise EntryError for any other."""
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
    """Give what the bytes of a manifest say; raise EntryError for what is no strict JSON."""
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
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
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise EntryError("E1", f"{what} has a field {shown(name)}, which is not known", hint)


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

"""The parts of a judgement as JSON, and back; what is read is checked down to each number."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.entries.manifest import entry_in, manifest_of
from tinytorch.competition.entries.plain_text import as_plain
from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import Ablation, Heat, Score
from tinytorch.competition.rules import Finding
from tinytorch.errors import RecordError

__all__ = [
    "ablation_fields",
    "ablation_of",
    "accuracy_fields",
    "accuracy_of",
    "checked",
    "checked_list",
    "checked_texts",
    "entry_fields",
    "entry_of",
    "finding_fields",
    "finding_of",
    "heats_of",
    "problem_of",
    "score_fields",
]

Fields = dict[str, Any]

IN_WORDS = {
    str: "text",
    dict: "an object",
    list: "a list",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
ENTRY = {"manifest": dict, "sha256": str}
FINDING = {"rule": str, "seen": str, "fix": str, "severity": str}
ABLATION = {"technique": str, "heats": dict, "reason": str}
ACCURACY = {"metric": str, "margin": float, "confidence": float}
SIDES = {"reference": dict, "entry": dict}


def checked(
    fields: Any, types: Mapping[str, type], what: str, *, others: Sequence[str] = ()
) -> Fields:
    """Give the fields of an object once they are exactly these, of these types.

    `others` must be there as well, but may be anything. Numbers are floats and finite.
    """
    if not isinstance(fields, Mapping):
        raise RecordError(f"{what}: {type(fields).__name__}, not an object")
    known = {*types, *others}
    if fields.keys() != known:
        missing, odd = sorted(known - fields.keys()), sorted(fields.keys() - known)
        raise RecordError(f"{what}: without {missing} and with {odd}; it is damaged or of others")
    return {
        name: _checked_value(value, types[name], f"{what}: {name}") if name in types else value
        for name, value in fields.items()
    }


def checked_list(values: Any, what: str) -> list[Any]:
    """Give a list once it is one."""
    return list(_checked_value(values, list, what))


def checked_texts(fields: Any, what: str) -> dict[str, str]:
    """Give an object once all of its values are text."""
    return checked(fields, dict.fromkeys(_checked_value(fields, dict, what), str), what)


def _checked_value(value: Any, kind: type, what: str) -> Any:
    expected: Any = (int, float) if kind is float else kind
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{what} is {type(value).__name__}, not {IN_WORDS[kind]}")
    return _as_float(value, what) if kind is float else value


def _as_float(value: Any, what: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RecordError(f"{what} is {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise RecordError(f"{what} is too large a number") from error
    if not math.isfinite(number):
        raise RecordError(f"{what} is {number}, not a finite number")
    return number


# ---------------------------------------------------------------- the entry


def entry_fields(entry: Entry) -> Fields:
    """Give the manifest of an entry, and the hash of it and its files."""
    return {"manifest": manifest_of(entry), "sha256": entry.sha256}


def entry_of(fields: Any) -> Entry:
    """Give back an entry, in no folder; it must be one that can take part."""
    found = checked(fields, ENTRY, "the entry")
    return replace(entry_in(found["manifest"]), sha256=found["sha256"])


# ---------------------------------------------------------------- findings, ablations, heats


def finding_fields(found: Finding) -> Fields:
    return {
        "rule": found.rule,
        "seen": as_plain(found.seen),
        "fix": as_plain(found.fix),
        "severity": found.severity,
    }


def finding_of(fields: Any) -> Finding:
    found = checked(fields, FINDING, "a finding")
    if found["severity"] not in ("fatal", "warning"):
        raise RecordError(f"a finding: {found['severity']!r} is neither fatal nor a warning")
    return Finding(**found)


def ablation_fields(ablation: Ablation) -> Fields:
    """Give an ablation with the raw values of its heats, by side and measure.

    Heats whose numbers make no sense are left out, all of them, with the reason.
    """
    heats, reason = ablation.heats, as_plain(ablation.reason)
    names = sorted(heats[0].entry) if heats else []
    problem = next(filter(None, (problem_of(heat, names) for heat in heats)), "")
    if problem:
        heats, names, reason = (), [], problem
    series = {
        side: {name: [float(getattr(heat, side)[name]) for heat in heats] for name in names}
        for side in SIDES
    }
    return {"technique": ablation.technique, "heats": series, "reason": reason}


def ablation_of(fields: Any, *, event: str) -> Ablation:
    """Give back an ablation in an event."""
    found = checked(fields, ABLATION, "an ablation")
    names = [each.name for each in find_event(event).measures]
    heats = heats_of(found["heats"], f"the ablation of {found['technique']!r}", names=names)
    return Ablation(found["technique"], heats, found["reason"])


def problem_of(heat: Heat, names: Collection[str]) -> str:
    """Say what is wrong with a heat that should have these measures, or nothing."""
    for side in SIDES:
        values = getattr(heat, side)
        if values.keys() != set(names):
            return f"the {side} has the measures {', '.join(values)} instead of {', '.join(names)}"
        for name, value in values.items():
            if not (math.isfinite(value) and value > 0):
                return f"{name} of the {side} is {value}, which is no positive number"
    return ""


def heats_of(fields: Any, what: str, *, names: Collection[str]) -> tuple[Heat, ...]:
    """Give back heats from series by side and measure, all of the same length."""
    sides = checked(fields, SIDES, what)
    columns = {
        side: {
            name: [_as_float(value, f"{what}: {name}") for value in _values(values, what)]
            for name, values in series.items()
        }
        for side, series in sides.items()
    }
    lengths = {len(values) for series in columns.values() for values in series.values()}
    if len(lengths) > 1:
        raise RecordError(f"{what}: between {min(lengths)} and {max(lengths)} values for each heat")
    heats = tuple(
        Heat(*({name: values[row] for name, values in columns[side].items()} for side in SIDES))
        for row in range(max(lengths, default=0))
    )
    for number, heat in enumerate(heats, start=1):
        if problem := problem_of(heat, names):
            raise RecordError(f"{what}, heat {number}: {problem}")
    return heats


def _values(values: Any, what: str) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise RecordError(f"{what}: {type(values).__name__}, not a list of numbers")
    return values


# ---------------------------------------------------------------- scores


def score_fields(score: Score | None) -> Fields | None:
    """Give a score for whoever reads the file; what counts is computed from the heats."""
    if score is None:
        return None
    return {"value": score.value, "low": score.low, "high": score.high, "n": score.n}


def accuracy_fields(accuracy: AccuracyComparison | None) -> Fields | None:
    """Give the scores of all examples: those of 0 and 1 as one text, others as numbers."""
    if accuracy is None:
        return None
    return {
        "metric": accuracy.metric,
        "margin": accuracy.margin,
        "confidence": accuracy.confidence,
        "reference": _packed(accuracy.baseline_scores),
        "entry": _packed(accuracy.candidate_scores),
    }


def accuracy_of(fields: Any) -> AccuracyComparison | None:
    if fields is None:
        return None
    found = checked(fields, ACCURACY, "accuracy", others=("reference", "entry"))
    # Arrays instead of tuples: there may be a hundred thousand scores, and they become tuples.
    reference: Any = _unpacked(found["reference"])
    entry: Any = _unpacked(found["entry"])
    return AccuracyComparison(
        reference, entry, found["margin"], found["confidence"], found["metric"]
    )


def _packed(scores: Sequence[float]) -> str | list[float | str]:
    if set(scores) <= {0.0, 1.0}:
        return "".join("1" if score else "0" for score in scores)
    return [score if math.isfinite(score) else str(score) for score in scores]


def _unpacked(scores: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(scores, str):
        letters = np.frombuffer(scores.encode("utf-8"), dtype=np.uint8)
        if not len(letters) or letters.min() < ord("0") or letters.max() > ord("1"):
            raise RecordError("accuracy: scores that are no text of 0 and 1")
        return (letters - ord("0")).astype(np.float64)
    if not isinstance(scores, list):
        raise RecordError("accuracy: scores that are neither text nor a list of numbers")
    special = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return np.array(
        [
            special[score]
            if isinstance(score, str) and score in special
            else _as_float(score, "accuracy: a score")
            for score in scores
        ],
        dtype=np.float64,
    )

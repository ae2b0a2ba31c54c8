"""A judgement as a record, and back: every raw value, what was found, and on which machine.

The samples of a record are the measures of the heats: ``p90 latency`` of the entry and ``reference
p90 latency`` of the reference. Everything else of the judgement lies in the details, whose form has
its own version (`SCHEMA`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tinytorch import __version__
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entry import (
    Entry,
    as_plain,
    as_plain_fields,
    entry_in,
    find_hidden_letter,
    manifest_of,
)
from tinytorch.competition.events import Measure, find_event
from tinytorch.competition.judgement import Ablation, Heat, Judgement, Score
from tinytorch.competition.rules import Finding
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.records.record import Record

# ---------------------------------------------------------------- the parts of a judgement as
# JSON, and back; what is read is checked down to each number

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
    """Return the fields of an object after checking that they are exactly these, of these types.

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
    """Return `values` after checking that it is a list."""
    return list(_checked_value(values, list, what))


def checked_texts(fields: Any, what: str) -> dict[str, str]:
    """Return `fields` after checking that all values are strings."""
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
    """Return the manifest of an entry, and the hash of it and its files."""
    return {"manifest": manifest_of(entry), "sha256": entry.sha256}


def entry_of(fields: Any) -> Entry:
    """Read an entry (without a folder), and check that it is valid."""
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
    """Return an ablation with the raw values of its heats, by side and measure.

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
    """Read an ablation of an event."""
    found = checked(fields, ABLATION, "an ablation")
    names = [each.name for each in find_event(event).measures]
    heats = heats_of(found["heats"], f"the ablation of {found['technique']!r}", names=names)
    return Ablation(found["technique"], heats, found["reason"])


def problem_of(heat: Heat, names: Collection[str]) -> str:
    """Return what is wrong with a heat that should have these measures, or ""."""
    for side in SIDES:
        values = getattr(heat, side)
        if values.keys() != set(names):
            return f"the {side} has the measures {', '.join(values)} instead of {', '.join(names)}"
        for name, value in values.items():
            if not (math.isfinite(value) and value > 0):
                return f"{name} of the {side} is {value}, which is no positive number"
    return ""


def heats_of(fields: Any, what: str, *, names: Collection[str]) -> tuple[Heat, ...]:
    """Read heats from series by side and measure, all of the same length."""
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
    """Return a score for readers of the file; the authoritative one is computed from the heats."""
    if score is None:
        return None
    return {"value": score.value, "low": score.low, "high": score.high, "n": score.n}


def accuracy_fields(accuracy: AccuracyComparison | None) -> Fields | None:
    """Return the scores of all examples: zeros and ones as one string, others as numbers."""
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


# ---------------------------------------------------------------- a judgement as a record, and
# back: every raw value, what was found, and on which machine

KIND = "competition"
PROTOCOL = 1
"""Grows when a run is judged in another way, so that its numbers do not fit those of before."""
SCHEMA = 1
"""The version of the details."""

# Version -> what turns the details of that version into those of the next.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

Claim = Literal["unverified", "verified"]
OF_REFERENCE = "reference "
UNITS = {"s": "s", "byte": "B", "ratio": ""}
DETAILS = {
    "schema": int,
    "status": str,
    "tinytorch": str,
    "entry": dict,
    "trusted code": bool,
    "round": dict,
    "findings": list,
    "ablations": list,
    "protection": dict,
    "seconds_used": float,
}
ROUND = {"name": str, "commitment": str, "data_sha256": str}


def as_record(judgement: Judgement, *, status: Claim = "unverified") -> Record:
    """Make a record of a judgement; `judgement_in` gives it back.

    It is the same but for this: a judgement that names no machine gets this one, one without a time
    the present; letters that steer a terminal are replaced in free text; and where the judge found
    something fatal, heats whose numbers make no sense are left out, with a note.
    """
    judgement = _with_usable_heats(judgement)
    event, entry = judgement.event, judgement.entry
    system = as_plain_fields(judgement.system)
    if not system.get("fingerprint"):
        system = {**describe_environment().to_dict(), **system}
    moment = {"created_at": judgement.created_at} if judgement.created_at else {}
    return Record(
        kind=KIND,
        name=_name(judgement),
        samples=_samples(judgement.heats, event.measures),
        environment=system,
        settings={
            "event": entry.event,
            "division": entry.division,
            "tier": entry.tier,
            "heats": len(judgement.heats),
            "protocol": PROTOCOL,
        },
        details=_details(judgement, status),
        notes=tuple(map(as_plain, judgement.notes)),
        **moment,
    )


def judgement_in(record: Record) -> Judgement:
    """Read the judgement in a record; raise RecordError if there is none."""
    if record.kind != KIND:
        raise RecordError(f"a record of kind {record.kind!r}; a run of the competition is {KIND!r}")
    hidden = find_hidden_letter([record.name, record.details, record.notes, record.environment])
    if hidden is not None:
        raise RecordError(f"the record holds the letter {hidden}, which cannot be seen; remove it")
    try:
        found = _judgement(record, _upgraded(record.details))
    except SettingError as error:
        raise RecordError(str(error)) from error
    if record.name != _name(found):
        raise RecordError(f"the record is called {record.name!r}, but is of {_name(found)!r}")
    return found


def claims_verified(record: Record) -> bool:
    """Return whether a record claims that the organiser made it, which remains to be checked.

    A run of Python code is verified only if it was run with trust.
    """
    has_code = record.details["entry"]["manifest"].get("code") is not None
    is_trusted = record.details["trusted code"] or not has_code
    return bool(record.details["status"] == "verified" and is_trusted)


# ---------------------------------------------------------------- writing


def _name(judgement: Judgement) -> str:
    entry = judgement.entry
    return f"{entry.event}/{entry.division}/{entry.tier:g}/{entry.team}"


def _with_usable_heats(judgement: Judgement) -> Judgement:
    """Leave out heats without positive numbers, such as those of a clock that was turned back."""
    names = [each.name for each in judgement.event.measures]
    problems = [problem_of(heat, names) for heat in judgement.heats]
    first = next(filter(None, problems), "")
    if not first:
        return judgement
    if not any(each.is_fatal for each in judgement.findings):
        raise SettingError(f"a heat cannot be kept: {first}; run again")
    kept = tuple(
        heat for heat, problem in zip(judgement.heats, problems, strict=True) if not problem
    )
    note = f"{len(judgement.heats) - len(kept)} heats are left out, the first because {first}"
    return replace(judgement, heats=kept, notes=(*judgement.notes, note))


def _samples(heats: Sequence[Heat], measures: Sequence[Measure]) -> dict[str, Samples]:
    if not heats:
        return {}
    units = {each.name: UNITS[each.unit] for each in measures}
    series = {f"{OF_REFERENCE}{name}": [heat.reference[name] for heat in heats] for name in units}
    series |= {name: [heat.entry[name] for heat in heats] for name in units}
    return {
        name: Samples(name, tuple(values), units[name.removeprefix(OF_REFERENCE)])
        for name, values in series.items()
    }


def _details(judgement: Judgement, status: Claim) -> dict[str, Any]:
    has_code = judgement.entry.code is not None
    return {
        "schema": SCHEMA,
        "status": status,
        "tinytorch": __version__,
        "entry": entry_fields(judgement.entry),
        "trusted code": has_code and not any(each.rule == "E6" for each in judgement.findings),
        "round": {
            "name": judgement.round_name,
            "commitment": judgement.commitment,
            "data_sha256": judgement.data_sha256,
        },
        "score": score_fields(judgement.score),
        "accuracy": accuracy_fields(judgement.accuracy),
        "findings": [finding_fields(each) for each in judgement.findings],
        "ablations": [ablation_fields(each) for each in judgement.ablations],
        "protection": as_plain_fields(judgement.protection),
        "seconds_used": float(judgement.seconds_used),
    }


# ---------------------------------------------------------------- reading


def _upgraded(details: Mapping[str, Any]) -> dict[str, Any]:
    version = details.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"details without a version: schema is {version!r}")
    if version > SCHEMA:
        raise RecordError(
            f"details of schema {version}, but this tinytorch reads up to {SCHEMA}; "
            "update tinytorch"
        )
    upgraded = dict(details)
    for each in range(version, SCHEMA):
        upgraded = UPGRADES[each](upgraded)
    return upgraded


def _judgement(record: Record, details: Mapping[str, Any]) -> Judgement:
    fields = checked(details, DETAILS, "details", others=("score", "accuracy"))
    if fields["status"] not in ("unverified", "verified"):
        raise RecordError(f"the status is {fields['status']!r}, neither unverified nor verified")
    origin = checked(fields["round"], ROUND, "the round")
    entry = entry_of(fields["entry"])
    _check_settings(record.settings, entry)
    found = Judgement(
        entry=entry,
        heats=(),
        accuracy=accuracy_of(fields["accuracy"]),
        findings=tuple(finding_of(each) for each in checked_list(fields["findings"], "findings")),
        ablations=tuple(
            ablation_of(each, event=entry.event)
            for each in checked_list(fields["ablations"], "ablations")
        ),
        round_name=origin["name"],
        commitment=origin["commitment"],
        data_sha256=origin["data_sha256"],
        protection=checked_texts(fields["protection"], "protection"),
        system=record.environment,
        seconds_used=fields["seconds_used"],
        created_at=record.created_at,
        notes=record.notes,
    )
    return _with_heats(found, record)


def _with_heats(found: Judgement, record: Record) -> Judgement:
    measures, count = found.event.measures, record.settings["heats"]
    entry = {each.name: each for each in measures} if count else {}
    expected = {*entry, *(f"{OF_REFERENCE}{name}" for name in entry)}
    if record.samples.keys() != expected or count < 0:
        odd = ", ".join(sorted(record.samples.keys() ^ expected))
        raise RecordError(f"the samples are not those of {found.event.title}: see {odd}")
    for name, samples in record.samples.items():
        if samples.count != count:
            raise RecordError(f"{samples.count} values of {name!r} in {count} heats")
        unit = UNITS[entry[name.removeprefix(OF_REFERENCE)].unit]
        if samples.unit != unit:
            raise RecordError(f"samples of {name!r} are in {samples.unit!r}, not in {unit!r}")
    series = {
        "reference": {name: record.samples[OF_REFERENCE + name].values for name in entry},
        "entry": {name: record.samples[name].values for name in entry},
    }
    return replace(found, heats=heats_of(series, "the samples", names=entry))


def _check_settings(settings: Mapping[str, Any], entry: Entry) -> None:
    expected = {name: getattr(entry, name) for name in ("event", "division", "tier")}
    others = {"heats": int, "protocol": int}
    checked({name: settings.get(name) for name in others}, others, "settings")
    if settings.keys() != {*expected, *others}:
        raise RecordError(f"settings of a run are {', '.join([*expected, *others])}; no others")
    for name, value in expected.items():
        if settings[name] != value:
            raise RecordError(f"settings say {name} {settings[name]!r}, the entry {value!r}")
    if settings["protocol"] != PROTOCOL:
        raise RecordError(
            f"a run by protocol {settings['protocol']}, but this tinytorch knows {PROTOCOL}; "
            "judge the entry again"
        )

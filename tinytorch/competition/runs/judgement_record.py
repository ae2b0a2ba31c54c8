"""A judgement as a record, and back: every raw value, what was found, and on which machine.

The samples of a record are the measures of the heats: ``p90 latency`` of the entry and ``reference
p90 latency`` of the reference. Everything else of the judgement lies in the details, whose form has
a version of its own (`SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tinytorch import __version__
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.entries.plain_text import as_plain, as_plain_fields, find_hidden_letter
from tinytorch.competition.events import Measure
from tinytorch.competition.judgement import Heat, Judgement
from tinytorch.competition.runs.judgement_parts import (
    ablation_fields,
    ablation_of,
    accuracy_fields,
    accuracy_of,
    checked,
    checked_list,
    checked_texts,
    entry_fields,
    entry_of,
    finding_fields,
    finding_of,
    heats_of,
    problem_of,
    score_fields,
)
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.workloads.record import Record

__all__ = ["KIND", "PROTOCOL", "SCHEMA", "as_record", "claims_verified", "judgement_in"]

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
    """Give the judgement that a record was made of; raise RecordError where there is none."""
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
    """Say whether a record states that the organiser made it; whether to believe it is open.

    A run of Python code is verified only where somebody trusted the code.
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

"""A judgement as a record, and back: every raw value, what was found, and on which machine.

The samples of a record are the measures of the heats: ``p90 latency`` of the entry and ``reference
p90 latency`` of the reference. Everything else of the judgement lies in the details, whose form has
its own version (`SCHEMA`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from tinytorch import __version__
from tinytorch.codec import Coded, decode
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entry import (
    Entry,
    as_plain_fields,
    entry_in,
    find_hidden_letter,
    manifest_of,
)
from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import Ablation, Heat, Judgement, Score
from tinytorch.competition.rules import Finding
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.records.record import Record

KIND = "competition"
PROTOCOL = 1
"""Grows when a run is judged in another way, so that its numbers do not fit those of before."""
SCHEMA = 1
"""The version of the details."""

Claim = Literal["unverified", "verified"]
OF_REFERENCE = "reference "
UNITS = {"s": "s", "byte": "B", "ratio": ""}
SIDES = ("reference", "entry")

# ---------------------------------------------------------------- the parts of the details


@dataclass(frozen=True)
class KeptHeats(Coded):
    """The values of each measure of both sides, one for each heat."""

    reference: Mapping[str, tuple[float, ...]]
    entry: Mapping[str, tuple[float, ...]]

    strict = True

    @classmethod
    def of(cls, heats: Sequence[Heat], names: Collection[str]) -> Self:
        """Return heats by side and measure."""
        return cls(
            *(
                {name: tuple(float(getattr(heat, side)[name]) for heat in heats) for name in names}
                for side in SIDES
            )
        )

    def heats(self, what: str, *, names: Collection[str]) -> tuple[Heat, ...]:
        """Return the heats; raise RecordError unless all values are positive numbers."""
        columns = [getattr(self, side) for side in SIDES]
        lengths = {len(values) for series in columns for values in series.values()}
        if len(lengths) > 1:
            raise RecordError(
                f"{what}: between {min(lengths)} and {max(lengths)} values for each heat"
            )
        heats = tuple(
            Heat(*({name: float(series[name][row]) for name in series} for series in columns))
            for row in range(max(lengths, default=0))
        )
        for number, heat in enumerate(heats, start=1):
            if problem := problem_of(heat, names):
                raise RecordError(f"{what}, heat {number}: {problem}")
        return heats


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


@dataclass(frozen=True)
class KeptAblation(Coded):
    """An ablation, with its heats by side and measure."""

    technique: str
    heats: KeptHeats
    reason: str

    strict = True

    @classmethod
    def of(cls, ablation: Ablation) -> Self:
        """Keep an ablation; heats whose numbers make no sense are left out, with the reason."""
        heats, reason = ablation.heats, ablation.reason
        names = sorted(heats[0].entry) if heats else []
        problem = next(filter(None, (problem_of(heat, names) for heat in heats)), "")
        if problem:
            heats, names, reason = (), [], problem
        return cls(ablation.technique, KeptHeats.of(heats, names), reason)

    def ablation(self, event: str) -> Ablation:
        """Return the ablation of an event."""
        names = [each.name for each in find_event(event).measures]
        what = f"the ablation of {self.technique!r}"
        return Ablation(self.technique, self.heats.heats(what, names=names), self.reason)


@dataclass(frozen=True)
class KeptAccuracy(Coded):
    """The scores of all examples: zeros and ones as one string, others as numbers."""

    metric: str
    margin: float
    confidence: float
    reference: str | tuple[float, ...]
    entry: str | tuple[float, ...]

    strict = True
    nonfinite = "text"

    @classmethod
    def of(cls, found: AccuracyComparison) -> Self:
        """Keep a comparison of scores."""
        both = (_packed(each) for each in (found.baseline_scores, found.candidate_scores))
        return cls(found.metric, found.margin, found.confidence, *both)

    def comparison(self) -> AccuracyComparison:
        """Return the comparison of these scores."""
        # Arrays instead of tuples: there may be a hundred thousand scores, and they become tuples.
        one: Any = _unpacked(self.reference)
        other: Any = _unpacked(self.entry)
        return AccuracyComparison(one, other, self.margin, self.confidence, self.metric)


def _packed(scores: Sequence[float]) -> str | tuple[float, ...]:
    if set(scores) <= {0.0, 1.0}:
        return "".join("1" if score else "0" for score in scores)
    return tuple(scores)


def _unpacked(scores: str | Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(scores, str) and (not scores or set(scores) - {"0", "1"}):
        raise RecordError("accuracy: scores that are no text of 0 and 1")
    return np.array(list(scores), dtype=np.float64)


@dataclass(frozen=True)
class KeptEntry(Coded):
    """The manifest of an entry, and the hash of it and its files."""

    manifest: Mapping[str, Any]
    sha256: str

    strict = True

    def entry(self) -> Entry:
        """Return the entry (without a folder); raise EntryError unless it is valid."""
        return replace(entry_in(self.manifest), sha256=self.sha256)


@dataclass(frozen=True)
class KeptRound(Coded):
    """Which questions were asked."""

    name: str
    commitment: str
    data_sha256: str

    strict = True


@dataclass(frozen=True)
class Details(Coded):
    """All of a judgement but its heats. The authoritative score is computed from these."""

    status: Claim
    tinytorch: str
    entry: KeptEntry
    trusted_code: bool
    round: KeptRound
    score: Any
    accuracy: KeptAccuracy | None
    findings: tuple[Finding, ...]
    ablations: tuple[KeptAblation, ...]
    protection: Mapping[str, str]
    seconds_used: float

    schema = SCHEMA
    strict = True
    renames: ClassVar = {"trusted_code": "trusted code"}


@dataclass(frozen=True)
class RunSettings(Coded):
    """What must be equal for two runs to be comparable."""

    event: str
    division: str
    tier: float
    heats: int
    protocol: int

    strict = True

    @classmethod
    def of(cls, entry: Entry, heats: int) -> Self:
        """Return the settings of a run of an entry."""
        return cls(entry.event, entry.division, entry.tier, heats, PROTOCOL)


def score_fields(score: Score | None) -> dict[str, Any] | None:
    """Return a score for readers of the file."""
    if score is None:
        return None
    return {"value": score.value, "low": score.low, "high": score.high, "n": score.n}


# ---------------------------------------------------------------- a judgement as a record, and back


def as_record(judgement: Judgement, *, status: Claim = "unverified") -> Record:
    """Make a record of a judgement; `judgement_in` gives it back.

    It is the same but for this: a judgement that names no machine gets this one, one without a time
    the present; letters that steer a terminal are replaced in free text; and where the judge found
    something fatal, heats whose numbers make no sense are left out, with a note.
    """
    judgement = _with_usable_heats(judgement)
    system = as_plain_fields(judgement.system)
    if not system.get("fingerprint"):
        system = {**describe_environment().to_dict(), **system}
    moment = {"created_at": judgement.created_at} if judgement.created_at else {}
    return Record(
        kind=KIND,
        name=_name(judgement),
        samples=_samples(judgement),
        environment=system,
        settings=RunSettings.of(judgement.entry, len(judgement.heats)).to_dict(),
        details=as_plain_fields(_details(judgement, status).to_dict()),
        notes=tuple(as_plain_fields(judgement.notes)),
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
        found = _judgement(record, decode(Details, record.details))
    except (SettingError, OverflowError) as error:
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


def _units(judgement: Judgement) -> dict[str, str]:
    """Return the unit of the samples of each measure, of the reference first."""
    units = {each.name: UNITS[each.unit] for each in judgement.event.measures}
    return {f"{OF_REFERENCE}{name}": unit for name, unit in units.items()} | units


def _samples(judgement: Judgement) -> dict[str, Samples]:
    if not judgement.heats:
        return {}
    units = _units(judgement)
    kept = KeptHeats.of(judgement.heats, [each.name for each in judgement.event.measures])
    series = {f"{OF_REFERENCE}{name}": values for name, values in kept.reference.items()}
    series |= kept.entry
    return {name: Samples(name, values, units[name]) for name, values in series.items()}


def _details(judgement: Judgement, status: Claim) -> Details:
    entry, accuracy = judgement.entry, judgement.accuracy
    is_refused = any(each.rule == "E6" for each in judgement.findings)
    return Details(
        status=status,
        tinytorch=__version__,
        entry=KeptEntry(manifest_of(entry), entry.sha256),
        trusted_code=entry.code is not None and not is_refused,
        round=KeptRound(judgement.round_name, judgement.commitment, judgement.data_sha256),
        score=score_fields(judgement.score),
        accuracy=None if accuracy is None else KeptAccuracy.of(accuracy),
        findings=judgement.findings,
        ablations=tuple(map(KeptAblation.of, judgement.ablations)),
        protection=judgement.protection,
        seconds_used=float(judgement.seconds_used),
    )


def _judgement(record: Record, details: Details) -> Judgement:
    entry = details.entry.entry()
    found = Judgement(
        entry=entry,
        heats=(),
        accuracy=None if details.accuracy is None else details.accuracy.comparison(),
        findings=details.findings,
        ablations=tuple(each.ablation(entry.event) for each in details.ablations),
        round_name=details.round.name,
        commitment=details.round.commitment,
        data_sha256=details.round.data_sha256,
        protection=details.protection,
        system=record.environment,
        seconds_used=float(details.seconds_used),
        created_at=record.created_at,
        notes=record.notes,
    )
    return _with_heats(found, record)


def _with_heats(found: Judgement, record: Record) -> Judgement:
    settings = decode(RunSettings, record.settings)
    if settings != (expected := RunSettings.of(found.entry, settings.heats)):
        raise RecordError(
            f"the settings are {settings}, and of this entry {expected}: it is another run, or one "
            "by another protocol; judge the entry again"
        )
    units = _units(found) if settings.heats else {}
    if record.samples.keys() != units.keys() or settings.heats < 0:
        odd = ", ".join(sorted(record.samples.keys() ^ units.keys()))
        raise RecordError(f"the samples are not those of {found.event.title}: see {odd}")
    for name, samples in record.samples.items():
        if samples.count != settings.heats:
            raise RecordError(f"{samples.count} values of {name!r} in {settings.heats} heats")
        if samples.unit != units[name]:
            raise RecordError(f"{name!r} is in {samples.unit!r}, not in {units[name]!r}")
    names = [each.name for each in found.event.measures] if units else []
    kept = KeptHeats(
        {name: record.samples[OF_REFERENCE + name].values for name in names},
        {name: record.samples[name].values for name in names},
    )
    return replace(found, heats=kept.heats("the samples", names=names))

"""Do the numbers of a record follow from its raw values? (Rule R3.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tinytorch.competition.events import KEPT, draw_questions, find_event, tier_margin, tier_verdict
from tinytorch.competition.judgement import FEWEST_HEATS, Judgement
from tinytorch.competition.judgement_record import claims_verified, score_fields
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.run_files import NOT_CHECKED, Status
from tinytorch.competition.signing import SignatureCheck, public_part
from tinytorch.errors import SettingError
from tinytorch.records.record import Record

__all__ = ["check_numbers", "check_round", "find_round", "status_of"]


CLOSE = 1e-9
"""Logarithms of other machines may differ in the last digits."""
CLOCKS_DIFFER = timedelta(hours=1)
Check = Callable[[Record, Judgement], Iterator[str]]


def check_numbers(record: Record, judgement: Judgement) -> tuple[Finding, ...]:
    """Give what of a record does not follow from its own raw values."""
    return tuple(finding("R3", seen) for check in CHECKS for seen in check(record, judgement))


def _score(record: Record, judgement: Judgement) -> Iterator[str]:
    stored, expected = record.details["score"], score_fields(judgement.score)
    if expected is None or not isinstance(stored, dict):
        if stored != expected:
            yield f"the score says {stored}, the heats give {expected}"
        return
    if stored.keys() != expected.keys():
        yield f"the score has {', '.join(stored)} instead of {', '.join(expected)}"
        return
    for name, value in expected.items():
        said = stored[name]
        is_number = isinstance(said, int | float) and not isinstance(said, bool)
        if not is_number or not math.isclose(said, value, rel_tol=CLOSE):
            yield f"the score says {name} {said}, the heats give {value:.6g}"


def _heats(record: Record, judgement: Judgement) -> Iterator[str]:
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if is_clean and len(judgement.heats) < FEWEST_HEATS:
        yield f"{len(judgement.heats)} heats without a finding; a run has {FEWEST_HEATS} or more"
    if judgement.seconds_used < 0:
        yield f"it took {judgement.seconds_used} seconds"


def _moment(record: Record, judgement: Judgement) -> Iterator[str]:
    if datetime.fromisoformat(record.created_at) > datetime.now(UTC) + CLOCKS_DIFFER:
        yield f"it was made at {record.created_at}, which is still to come"


def _accuracy(record: Record, judgement: Judgement) -> Iterator[str]:
    """Hold the margin and the verdict against the scores; a finding A2 may not be left out."""
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if judgement.accuracy is None:
        if is_clean:
            yield "no answer was scored, and nothing was found against it"
        return
    # A copy, which takes what it has computed along; thousands of runs may be held at once.
    found = replace(judgement.accuracy)
    margin = tier_margin(judgement.event, judgement.entry.tier, found.baseline_mean)
    if not math.isclose(found.margin, margin, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"accuracy may drop by {found.margin:g} in it, but by {margin:g} in this tier"
    if is_clean and tier_verdict(found) != KEPT:
        yield "its scores do not show that the accuracy is kept, but there is no finding A2"


def _ablations(record: Record, judgement: Judgement) -> Iterator[str]:
    declared = [each.name for each in judgement.entry.techniques]
    removed = [each.technique for each in judgement.ablations]
    odd = [name for name in removed if name not in declared]
    if odd or len(set(removed)) < len(removed):
        yield f"the techniques {removed} were switched off, {declared} are declared"


CHECKS: tuple[Check, ...] = (_score, _heats, _moment, _accuracy, _ablations)


# ---------------------------------------------------------------- is a run verified? Only what can
# be checked here counts, never the record's word alone
#
# A run whose signature cannot be checked here, for want of the package, has a status of its own.
# For the rest, a record that says so is believed when its commitment is that of a known round and
#
# - the round names a public key, and the record is signed with that key; or - the round names none,
# its seed is revealed, and the questions are those of the seed; or - the round names none, and its
# seed is not revealed yet. Then whoever keeps the folder is believed, and the status says that
# nobody else can check it so far.
#
# After the seed is revealed, anybody could make a record that fits it. Only a key keeps such
# records out, which is why a round among strangers needs one.

Known = Iterable[Round]


def status_of(
    record: Record, judgement: Judgement, *, signature: SignatureCheck, rounds: Known
) -> Status:
    """Say how far a run is believed."""
    if not signature.is_checked:
        return NOT_CHECKED
    found = find_round(judgement, rounds)
    if not claims_verified(record) or found is None or found.name == PRACTICE.name:
        return "unverified"
    wrong = check_round(record, judgement, signer=signature.signer, rounds=[found])
    if any(each.is_fatal for each in wrong):
        return "unverified"
    return "verified" if found.public_key or found.is_revealed else "verified, seed not revealed"


def find_round(judgement: Judgement, rounds: Known) -> Round | None:
    """Give the round of a run among those that are known, the one with its seed if there is."""
    same = [
        each
        for each in (*rounds, PRACTICE)
        if (each.name, each.commitment) == (judgement.round_name, judgement.commitment)
    ]
    return next((each for each in same if each.is_revealed), same[0] if same else None)


def check_round(
    record: Record, judgement: Judgement, *, signer: str, rounds: Known
) -> tuple[Finding, ...]:
    """Give what keeps a run from being of its round (R2), or the organiser's (R4).

    `signer` is the key that signed, or "".
    """
    found, is_claimed = find_round(judgement, rounds), claims_verified(record)
    if found is None:
        seen = f"the round {judgement.round_name!r} of this commitment is not known here"
        make = finding if is_claimed else doubt
        return (make("R2", seen, "give the file of the round"),)
    if is_claimed and found.name == PRACTICE.name:
        seen = "it says that it is verified, which no run of the practice round is"
        return (finding("R2", seen, "let the organiser judge it in a round"),)
    if found.created_at and record.created_at < found.created_at:
        return (finding("R2", f"it was made before the round {found.name!r} began"),)
    if is_claimed and found.public_key and not _is_same_key(signer, found.public_key):
        seen = f"it says that it is verified, but the key of the round {found.name!r} did not sign"
        return (finding("R4", seen, "let the organiser judge and sign it"),)
    return _check_questions(judgement, found)


def _check_questions(judgement: Judgement, found: Round) -> tuple[Finding, ...]:
    """Compare the hash of the questions with what the seed gives, where that is known.

    A run that was broken off has no score, and its questions are not looked at.
    """
    if not found.is_revealed or not judgement.is_valid:
        return ()
    try:
        expected = _questions_sha256(judgement.entry.event, found, len(judgement.heats))
    except SettingError as error:
        return (finding("R2", f"its questions cannot be drawn: {error}"),)
    if judgement.data_sha256 == expected:
        return ()
    return (finding("R2", f"its questions are not those of the seed of round {found.name!r}"),)


def _is_same_key(signer: str, expected: str) -> bool:
    try:
        return signer == public_part(expected)
    except SettingError:
        return False


@lru_cache(maxsize=256)
def _questions_sha256(event: str, found: Round, heats: int) -> str:
    """Give the hash of the questions of a round; drawing images takes seconds."""
    return draw_questions(find_event(event), found, heats=heats).sha256

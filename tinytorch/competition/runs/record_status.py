"""Is a run verified? Only what can be checked here counts, never the record's word alone.

A run whose signature cannot be checked here, for want of the package, has a status of its own. For
the rest, a record that says so is believed when its commitment is that of a known round and

- the round names a public key, and the record is signed with that key; or
- the round names none, its seed is revealed, and the questions are those of the seed; or
- the round names none, and its seed is not revealed yet. Then whoever keeps the folder is believed,
  and the status says that nobody else can check it so far.

After the seed is revealed, anybody could make a record that fits it. Only a key keeps such records
out, which is why a round among strangers needs one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.questions import draw_questions
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.runs.judgement_record import claims_verified
from tinytorch.competition.runs.kept_run import NOT_CHECKED, Status
from tinytorch.competition.runs.signing import SignatureCheck, public_part
from tinytorch.errors import SettingError
from tinytorch.workloads.record import Record

__all__ = ["check_round", "find_round", "status_of"]

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

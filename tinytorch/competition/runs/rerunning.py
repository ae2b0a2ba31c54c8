"""Verify an entry by judging it once more, on the questions of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.entries.entry_file import read_entry
from tinytorch.competition.judgement import FEWEST_HEATS, Judgement, Score, score_of
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.competition.runs.records_folder import keep_run, read_folder
from tinytorch.competition.runs.signing import SigningKey, public_part, read_key, sign_record
from tinytorch.errors import SettingError

__all__ = ["Judge", "Rerun", "check_can_verify", "claimed_score", "rerun"]


Judge = Callable[..., Judgement]
"""What `judging.judge.judge` is: called with an entry, `round`, `trust` and settings."""


@dataclass(frozen=True)
class Rerun:
    """An entry judged once more by the organiser: the new run, and what had been claimed.

    `claimed` is the score of all former runs of the entry together, None without any.
    """

    judgement: Judgement
    path: Path
    claimed: Score | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether the two intervals overlap; None where one of them is missing."""
        new, old = self.judgement.score, self.claimed
        if new is None or old is None or not self.judgement.is_valid:
            return None
        return new.low <= old.high and old.low <= new.high


def rerun(
    entry_folder: str | Path,
    round: Round,
    *,
    key: str | Path | SigningKey | None = None,
    trust: bool = False,
    judge: Judge | None = None,
    **settings: Any,
) -> Rerun:
    """Judge an entry with the seed of a round, and keep the run beside it as verified.

    `settings` go to the judge: heats, ablations, limits, progress. Where the round names a public
    key, the record is signed with its private part.
    """
    entry = read_entry(entry_folder)
    signing = check_can_verify(round, key)
    if entry.code is not None and not trust:
        raise SettingError(
            f"the entry of {entry.team!r} is Python code, {entry.code}; look at it, then pass "
            "--trust to run it"
        )
    claimed = claimed_score(entry)
    if judge is None:
        from tinytorch.competition.judging.judge import judge as judge_entry

        judge = judge_entry
    judgement = judge(entry, round=round, trust=trust, **settings)
    path = keep_run(judgement, entry, status="verified")
    if signing is not None:
        _sign_or_remove(path, signing)
    return Rerun(judgement, path, claimed)


def _sign_or_remove(path: Path, signing: SigningKey) -> None:
    """Sign a run; where that is broken off, keep none: unsigned, it would look like a forgery."""
    try:
        sign_record(path, signing)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def claimed_score(entry: Entry) -> Score | None:
    """Give what the valid, unverified runs beside an entry show together."""
    kept = read_folder(entry.folder).records
    runs = [run.judgement for run in kept if run.status == "unverified"]
    heats = [
        heat
        for run in runs
        if run.is_valid and run.entry.sha256 == entry.sha256
        for heat in run.heats
    ]
    if len(heats) < FEWEST_HEATS:
        return None
    return score_of(heats, [each.name for each in runs[0].event.scored])


def check_can_verify(round: Round, key: str | Path | SigningKey | None) -> SigningKey | None:
    """Give the key that signs; raise where a run in this round could not be verified with it."""
    signing = read_key(key) if isinstance(key, str | Path) else key
    if not round.is_revealed:
        raise SettingError(
            f"the seed of round {round.name!r} is not known here; give the organiser's secret file"
        )
    if round.name == PRACTICE.name:
        raise SettingError("everybody knows the questions of the practice round; give another one")
    if not round.public_key:
        return signing
    expected = public_part(round.public_key)
    if signing is None:
        raise SettingError(f"records of round {round.name!r} are signed; give the key with --key")
    if signing.public != expected:
        raise SettingError(f"the key is not the one that round {round.name!r} names: {expected}")
    return signing

"""Submit an entry with its runs into a folder of submissions, and judge it there again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinytorch.competition.entry import MANIFEST, RESULTS, Entry, entry_files, read_entry
from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import Judgement, Score, score_of
from tinytorch.competition.judgement_record import Claim, claims_verified, judgement_in
from tinytorch.competition.rounds import PRACTICE, Round
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import HASH_LENGTH, keep_run, read_record_file, run_files
from tinytorch.competition.sandbox.contender import USUAL_LIMITS, Limits
from tinytorch.competition.signing import (
    SigningKey,
    public_part,
    read_key,
    sign_record,
    signature_path,
)
from tinytorch.competition.verification import read_folder
from tinytorch.errors import MeasurementError, RecordError, SettingError
from tinytorch.records.record import utc_text

# ---------------------------------------------------------------- submit an entry: a copy of it
# and of all its runs goes into the folder of submissions

LONGEST_NAME = 40


@dataclass(frozen=True)
class Submitted:
    """Where an entry went, how many of its runs are new there, and how many there are in all.

    `older` of the runs are of former versions of the entry; they go along as history.
    """

    folder: Path
    entry: Entry
    added: int
    runs: int
    older: int

    def __str__(self) -> str:
        runs = f"{self.runs} run{'s' * (self.runs != 1)}, {self.added} new"
        older = f", {self.older} of former versions" if self.older else ""
        return f"{self.folder}: {runs}{older}"


def submit(
    entry_folder: str | Path,
    to: str | Path,
    *,
    key: str | Path | SigningKey | None = None,
    even_invalid: bool = False,
) -> Submitted:
    """Copy an entry and all of its runs into a folder of submissions, signed if there is a key.

    Submitting again adds only what is new. Without a run, or when the last run broke a rule,
    SettingError is raised; `even_invalid` submits the latter nevertheless.
    """
    entry = read_entry(entry_folder)
    signing = read_key(key) if isinstance(key, str | Path) else key
    runs = _runs_of(entry)
    own = [path for path, judgement in runs.items() if judgement.entry.sha256 == entry.sha256]
    _check_runs(runs, own, even_invalid=even_invalid)
    target = Path(to) / entry.event / folder_name(entry.team) / entry.sha256[:HASH_LENGTH]
    try:
        _copy_entry(entry, target)
        copies = [_copy_run(path, target / RESULTS) for path in runs]
    except OSError as error:
        raise SettingError(
            f"{error.filename or target} cannot be written ({error.strerror or error})"
        ) from error
    if signing is not None:
        for path, _ in copies:
            sign_record(path, signing)
    added = sum(is_new for _, is_new in copies)
    return Submitted(target, entry, added, len(runs), len(runs) - len(own))


def folder_name(team: str) -> str:
    """Return a folder name for a team that is valid on every system.

    >>> folder_name("Équipe № 1 / ../x")
    'equipe-no-1-x'
    """
    plain = unicodedata.normalize("NFKD", team).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].strip("-") or "team"


def _runs_of(entry: Entry) -> dict[Path, Judgement]:
    """Read all runs of an entry, oldest first; a damaged one is an error, not left out."""
    found = {}
    for path in run_files(entry.folder):
        try:
            record = read_record_file(path)
            found[path] = judgement_in(record)
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error
        if claims_verified(record):
            raise SettingError(
                f"{path} says that it is verified, which only the organiser's own run can be; "
                "submit your runs, and ask for verification"
            )
    return dict(sorted(found.items(), key=lambda item: item[1].created_at))


def _check_runs(runs: dict[Path, Judgement], own: list[Path], *, even_invalid: bool) -> None:
    if not own:
        seen = "its runs are of former versions" if runs else "it has no run"
        raise SettingError(f"{seen}; run the entry first: `tinytorch compete run`")
    fatal = [each for each in runs[own[-1]].findings if each.is_fatal]
    if fatal and not even_invalid:
        raise SettingError(
            f"the last run broke rule {fatal[0].rule}: {fatal[0].seen}; {fatal[0].fix}; then run "
            "again"
        )


def _copy_entry(entry: Entry, target: Path) -> None:
    """Copy manifest and files, all or nothing, and check the copy by its hash."""
    if target.is_symlink():
        raise SettingError(f"{target} is a link; remove it")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".", suffix=".partial"))
        try:
            for name in (MANIFEST, *entry_files(entry)):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(entry.folder / name, partial / name)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    if read_entry(target).sha256 != entry.sha256:
        raise RecordError(f"{target} holds other files than the entry; move it away")


def _copy_run(path: Path, results: Path) -> tuple[Path, bool]:
    """Copy a run and its signature; say whether it was new."""
    if results.is_symlink():
        raise SettingError(f"{results} is a link; remove it")
    results.mkdir(exist_ok=True)
    copy = results / path.name
    is_new = not os.path.lexists(copy)
    for source, goal in ((path, copy), (signature_path(path), signature_path(copy))):
        if source.is_file() and not os.path.lexists(goal):
            shutil.copyfile(source, goal)
    if not is_new and read_record_file(copy) != read_record_file(path):
        raise RecordError(f"{copy} is there already and holds another run; move it away")
    return copy, is_new


# ---------------------------------------------------------------- verify an entry by judging it
# once more, on the questions of a round

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
        return not new.is_apart_from(old)


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
    judgement, path = judge_and_keep(
        entry, round, status="verified", signing=signing, judge=judge, trust=trust, **settings
    )
    return Rerun(judgement, path, claimed)


def judge_and_keep(
    entry: Entry,
    round: Round,
    *,
    status: Claim = "unverified",
    signing: SigningKey | None = None,
    judge: Judge | None = None,
    limits: Limits = USUAL_LIMITS,
    **settings: Any,
) -> tuple[Judgement, Path]:
    """Judge an entry, and keep the run beside it, signed if there is a key.

    That the run has begun is kept before its first heat, and taken away when it is complete,
    stopped by hand, or the reference failed. What kills the judge leaves a run that is not valid.
    """
    from tinytorch.competition import judge as judging

    begun = Judgement(
        entry=entry,
        heats=(),
        accuracy=None,
        findings=(*judging.check_confined(entry, limits), finding("T7", "it has not ended")),
        round_name=round.name,
        commitment=round.commitment,
        created_at=utc_text(datetime.now(UTC)),
    )
    mark = _keep(begun, status, signing)
    run = judge or judging.judge
    try:
        judgement = run(entry, round=round, limits=limits, **settings)
        path = _keep(judgement, status, signing)
    except MeasurementError:
        _remove(mark)
        raise
    except KeyboardInterrupt:
        if not begun.is_unconfined:  # what is not confined could have sent it
            _remove(mark)
        raise
    _remove(mark)
    return judgement, path


def _keep(judgement: Judgement, status: Claim, signing: SigningKey | None) -> Path:
    path = keep_run(judgement, judgement.entry, status=status)
    if signing is not None:
        _sign_or_remove(path, signing)
    return path


def _remove(path: Path) -> None:
    """Remove a run and its signature, the signature last: alone it says nothing."""
    path.unlink()
    signature_path(path).unlink(missing_ok=True)


def _sign_or_remove(path: Path, signing: SigningKey) -> None:
    """Sign a run; if interrupted, keep none: unsigned, it would appear as a forgery."""
    try:
        sign_record(path, signing)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def claimed_score(entry: Entry) -> Score | None:
    """Return the pooled score of the valid, unverified runs of an entry."""
    kept = read_folder(entry.folder).records
    runs = [run.judgement for run in kept if run.status == "unverified"]
    heats = [
        heat
        for run in runs
        if run.is_valid and run.entry.sha256 == entry.sha256
        for heat in run.heats
    ]
    return score_of(heats, find_event(entry.event).scored)


def check_can_verify(round: Round, key: str | Path | SigningKey | None) -> SigningKey | None:
    """Return the signing key; raise SettingError if it cannot verify a run of this round."""
    signing = read_key(key) if isinstance(key, str | Path) else key
    if not round.is_revealed:
        raise SettingError(
            f"the seed of round {round.name!r} is not known here; give the organiser's secret file"
        )
    if round.name == PRACTICE.name:
        raise SettingError("the questions of the practice round are public; give another round")
    if not round.public_key:
        return signing
    expected = public_part(round.public_key)
    if signing is None:
        raise SettingError(f"records of round {round.name!r} are signed; give the key with --key")
    if signing.public != expected:
        raise SettingError(f"the key is not the one that round {round.name!r} names: {expected}")
    return signing

"""The classic competition: enter a Python object, and look at the boards.

A run here is local, trusted and unverified. Nothing here is affiliated with MLCommons.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.boards.board import Board, BoardKind, make_board
from tinytorch.competition.entries.entry import Entry, Technique
from tinytorch.competition.entries.manifest import manifest_of
from tinytorch.competition.events import find_event
from tinytorch.competition.judgement import FEWEST_HEATS, Judgement
from tinytorch.competition.judging.local_judge import judge_model
from tinytorch.competition.rounds import Round, new_round, public_file_name, write_round
from tinytorch.competition.runs.judgement_record import as_record
from tinytorch.competition.runs.kept_run import KeptRun
from tinytorch.competition.runs.records_folder import Folder, read_folder
from tinytorch.competition.runs.run_files import ROUNDS, keep_run
from tinytorch.competition.runs.submitting import folder_name
from tinytorch.core.progress import ProgressLine
from tinytorch.errors import SettingError
from tinytorch.perf.benchmarking.checks import check_count
from tinytorch.showing import competition_boards
from tinytorch.workloads.record import canonical_json

__all__ = ["TinyMLPerfCompetition"]

DIVISION, TIER = "open", 0.99
"""A Python object may be anything, and has to keep 99% of the reference's accuracy."""
PRECISION = "int4"
"""A Python object does not declare how precise it is, so the least precise is allowed."""
HASH_LENGTH = 12
LOCAL, LOCAL_BYTES = "local-", 8
LOCAL_NAME = re.compile(f"{LOCAL}[0-9a-f]{{{2 * LOCAL_BYTES}}}")


class TinyMLPerfCompetition:
    """Enter models of this process into the events, and see how they stand.

    Every entry runs against the reference, in turns and on questions that neither has seen, and is
    kept as unverified; with a `folder`, as a file in it, too, and the runs that are there already
    stand on the board as well. `heats` (6 or more) is how often both begin anew, with `seed` for
    their order. To be verified, make an entry with ``tinytorch compete new``.
    """

    def __init__(self, folder: str | Path | None = None, *, heats: int = 10, seed: int = 0) -> None:
        self.folder = None if folder is None else Path(folder)
        self.heats = check_count("heats", heats, at_least=1)
        if self.heats < FEWEST_HEATS:
            raise SettingError(
                f"heats={heats}; the interval of a speedup needs at least {FEWEST_HEATS}"
            )
        self.seed = seed
        self.runs: list[KeptRun] = []
        self.rounds: list[Round] = []

    def submit_entry(
        self,
        team_name: str,
        event_name: str,
        optimized_model: Any,
        optimization_description: str = "",
        github_url: str = "",
        *,
        without: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure a model in an event, keep the run, and give what was found.

        The model is a layer of TinyTorch, a module of PyTorch, or anything with `forward` or that
        can be called. It is copied, and left as it was. `without` has, by the name of a technique
        in small letters and dashes, the model without it: what a technique contributes is measured,
        not described. `speedup_score` is the reference's time over the model's, with the interval
        from `speedup_low` to `speedup_high`. A model that raises, gives NaN or loses accuracy is
        not ranked: `is_ranked` is false and `findings` say why.
        """
        event = find_event(event_name)
        techniques = tuple(Technique(name) for name in without or {})
        entry = Entry(
            team=team_name,
            event=event.name,
            division=DIVISION,
            tier=TIER,
            techniques=techniques,
            precision=PRECISION,
            description=optimization_description,
            url=github_url,
        )
        # Two entries are two, even where they say the same of themselves.
        told = canonical_json(manifest_of(entry)) + secrets.token_hex(16)
        entry = replace(entry, sha256=hashlib.sha256(told.encode("ascii")).hexdigest())
        line = _Line(self.heats * (1 + len(techniques)))
        fresh = new_round(f"{LOCAL}{secrets.token_hex(LOCAL_BYTES)}")
        try:
            judgement = judge_model(
                entry,
                optimized_model,
                event=event,
                questions_of=fresh,
                heats=self.heats,
                without=without,
                seed=self.seed,
                progress=line,
            )
        finally:
            line.close()
        self._keep(judgement, fresh)
        return _as_submission(judgement)

    @property
    def board(self) -> Board:
        """The board of all runs, those in the folder included."""
        there = Folder()
        if self.folder is not None and self.folder.is_dir():
            there = read_folder(self.folder)
        return make_board(
            [*there.records, *self.runs],
            rounds=[*there.rounds, *self.rounds],
            damaged=there.damaged,
        )

    def display_leaderboard(self, event: str | None = None) -> None:
        """Print who is faster than the reference, in one event or in all."""
        self._display("speed", event)

    def display_innovation_leaderboard(self, event: str | None = None) -> None:
        """Print what the declared techniques are shown to contribute."""
        self._display("innovation", event)

    def display_composite_leaderboard(self, event: str | None = None) -> None:
        """Print 70% speed and 30% innovation."""
        self._display("composite", event)

    def _display(self, kind: BoardKind, event: str | None) -> None:
        name = None if event is None else find_event(event).name
        board = self.board
        # Each entry has a round of its own here, which nobody has to look up.
        rounds = tuple(each for each in board.rounds if not LOCAL_NAME.fullmatch(each.name))
        competition_boards().print_board(replace(board, rounds=rounds), kind, event=name)

    def _keep(self, judgement: Judgement, asked: Round) -> None:
        """Keep a run in the folder, with the round that its questions come from, or in here."""
        if self.folder is None:
            self.runs.append(KeptRun(judgement, as_record(judgement).hash))
            self.rounds.append(asked)
            return
        entry = judgement.entry
        place = self.folder / entry.event / folder_name(entry.team) / entry.sha256[:HASH_LENGTH]
        keep_run(judgement, place)
        write_round(asked, self.folder / ROUNDS / public_file_name(asked.name), reveal=True)


class _Line:
    """A line of progress for those who wait at a terminal."""

    def __init__(self, total: int) -> None:
        self._line = ProgressLine(total)
        self._text = ""

    def describe(self, text: str) -> None:
        self._text = text

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._line.advance(self._text)

    def close(self) -> None:
        self._line.close()


def _as_submission(judgement: Judgement) -> dict[str, Any]:
    """Give the classic view of a judgement, and the judgement itself."""
    entry, score = judgement.entry, judgement.score if judgement.is_valid else None
    fatal = [each for each in judgement.findings if each.is_fatal]
    return {
        "submission_id": entry.sha256[:HASH_LENGTH],
        "timestamp": judgement.created_at,
        "team_name": entry.team,
        "event_name": entry.event,
        "optimization_description": entry.description,
        "github_url": entry.url,
        "status": "unverified",
        "is_ranked": judgement.is_valid,
        "speedup_score": score.value if score else None,
        "speedup_low": score.low if score else None,
        "speedup_high": score.high if score else None,
        "verdict": score.verdict if score else None,
        **_accuracy(judgement.accuracy),
        "findings": [f"{each.rule}: {each.seen}; {each.fix}" for each in fatal],
        "judgement": judgement,
    }


def _accuracy(found: AccuracyComparison | None) -> dict[str, Any]:
    """Give the mean scores of both sides; for text, those are log-likelihoods."""
    return {
        "metric": found.metric if found else None,
        "accuracy": found.candidate_mean if found else None,
        "reference_accuracy": found.baseline_mean if found else None,
    }

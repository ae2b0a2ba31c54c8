"""That a run has begun is kept before its first heat: one that dies counts."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from example_judgements import SPRING, entry_folder, kept_judgement
from parts import require_part

from tinytorch.competition.board import make_board
from tinytorch.competition.judgement_record import judgement_in
from tinytorch.competition.rounds import PRACTICE
from tinytorch.competition.run_files import read_record_file, run_files
from tinytorch.competition.sandbox.contender import Limits
from tinytorch.competition.signing import check_signature, new_key, read_key
from tinytorch.competition.submissions import judge_and_keep
from tinytorch.competition.verification import check_files, read_folder
from tinytorch.errors import MeasurementError, RecordError


@pytest.fixture
def entry(tmp_path):
    return entry_folder(tmp_path / "mine")


def kept(entry):
    return [judgement_in(read_record_file(path)) for path in run_files(entry.folder)]


def rules_of(judgement):
    return [each.rule for each in judgement.findings]


def judge_with(entry, act, **settings):
    """Judge with what happens in place of the heats."""

    def judge(entered, *, round, limits):
        act()
        return kept_judgement(entry=entered, round_name=round.name, commitment=round.commitment)

    return judge_and_keep(entry, settings.pop("round", PRACTICE), judge=judge, **settings)


def test_it_is_there_while_the_judge_works_and_gone_afterwards(entry):
    seen = []
    judgement, path = judge_with(entry, lambda: seen.extend(kept(entry)))
    assert [rules_of(each) for each in seen] == [["T7"]]
    assert (seen[0].heats, seen[0].is_valid) == ((), False)
    assert kept(entry) == [judgement]
    assert list(run_files(entry.folder)) == [path]


@pytest.mark.parametrize(
    ("error", "count"),
    [(KeyboardInterrupt, 0), (MeasurementError, 0), (RecordError, 1), (OSError, 1)],
)
def test_what_stopped_it_decides_whether_it_counts(entry, error, count):
    def stop():
        raise error("stopped")

    with pytest.raises(error):
        judge_with(entry, stop)
    assert len(kept(entry)) == count


def test_code_that_is_not_confined_cannot_stop_it_unseen(tmp_path):
    folder = tmp_path / "coded"
    folder.mkdir()
    (folder / "model.py").write_text("make = None")
    entry = entry_folder(folder, code="model.py:make", techniques=())

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_with(entry, stop, limits=Limits(unconfined=True))
    (left,) = kept(entry)
    assert rules_of(left) == ["W1", "T7"]
    assert left.is_unconfined


def test_it_counts_on_the_board_and_passes_verification(entry):
    for act, error in ((lambda: None, None), (lambda: 1 / 0, ZeroDivisionError)):
        if error is None:
            judge_with(entry, act)
            continue
        with pytest.raises(error):
            judge_with(entry, act)
    found = read_folder(entry.folder)
    assert (len(found.records), found.damaged) == (2, ())
    (contest,) = make_board(found.records).contests
    assert len(contest.refused) == 2  # as many that are not valid as valid ones
    findings = [each.rule for file in check_files(entry.folder) for each in file.findings]
    assert not {"R1", "R3", "R4"} & set(findings)


def test_of_a_verified_run_it_is_signed(entry, tmp_path):
    require_part("cryptography")
    new_key(tmp_path / "key")
    signing = read_key(tmp_path / "key")
    signers = []

    def look():
        (path,) = run_files(entry.folder)
        signers.append(check_signature(path, read_record_file(path).hash).signer)

    judge_with(entry, look, round=SPRING, status="verified", signing=signing)
    assert signers == [signing.public]
    left = sorted(each.suffix for each in (entry.folder / "results").iterdir())
    assert left == [".json", ".sig"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it is a signal of Unix")
def test_a_judge_that_is_killed_leaves_it(tmp_path):
    entry = entry_folder(tmp_path / "mine", techniques=())
    command = [sys.executable, "-m", "tinytorch", "compete", "run", str(entry.folder), "--quiet"]
    judge = subprocess.Popen(command)
    until = time.monotonic() + 120
    while not list(run_files(entry.folder)):
        assert time.monotonic() < until, "no run has begun"
        time.sleep(0.05)
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    (left,) = kept(entry)
    assert rules_of(left) == ["T7"]
    assert left.entry == replace(entry, folder=left.entry.folder)

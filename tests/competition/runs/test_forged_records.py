"""Known cheats with result files: each is caught, or believed by nobody."""

import json
import shutil
from dataclasses import replace

import pytest
from example_judgements import SPRING, entry_folder, kept_judgement
from parts import require_part

from tinytorch.competition import verification as record_status
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import write_round
from tinytorch.competition.run_files import keep_run, record_text
from tinytorch.competition.signing import new_key, sign_record
from tinytorch.competition.verification import check_files, findings_in, read_folder

DATA = "da" * 32


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Give an entry, and the file of a run of it."""
    monkeypatch.setattr(record_status, "_questions_sha256", lambda event, found, heats: DATA)
    entry = entry_folder(tmp_path / "mine")
    return entry, keep_run(kept_judgement(entry=entry, data_sha256=DATA), entry)


def fatal_rules(path, **given):
    found = findings_in(check_files(path, **given))
    return {each.rule for each in found if each.is_fatal}


def rewritten(record, folder):
    """Write a record with a hash that fits, as a cheat would."""
    path = folder / "results" / "forged.json"
    path.write_text(record_text(record), encoding="utf-8")
    return path


def test_an_edited_number_is_caught(kept):
    _, path = kept
    path.write_text(path.read_text().replace("0.0005", "0.0004", 1), encoding="utf-8")
    assert fatal_rules(path) == {"R1"}


def test_an_edited_score_with_a_new_hash_is_caught(kept):
    entry, path = kept
    record = as_record(kept_judgement(entry=entry, data_sha256=DATA))
    better = {"score": record.details["score"] | {"value": 9.0}}
    path = rewritten(replace(record, details=record.details | better), entry.folder)
    assert fatal_rules(path) == {"R3"}


def test_a_finding_that_was_taken_out_is_caught(kept):
    """The scores of the answers still show that the accuracy was lost."""
    entry, _ = kept
    lost = kept_judgement(entry=entry, data_sha256=DATA, lost=100)
    assert "R3" in fatal_rules(rewritten(as_record(lost), entry.folder))


def test_heats_that_were_left_out_are_caught(kept):
    entry, _ = kept
    whole = kept_judgement(entry=entry, data_sha256=DATA)
    path = rewritten(as_record(replace(whole, heats=whole.heats[:3])), entry.folder)
    assert "R3" in fatal_rules(path)


def test_verified_by_its_own_word_is_caught(kept, tmp_path):
    require_part("cryptography")
    entry, _ = kept
    organiser, own = new_key(tmp_path / "organiser.pem"), new_key(tmp_path / "own.pem")
    signed_round = replace(SPRING, public_key=organiser.public)
    judgement = kept_judgement(
        entry=entry, data_sha256=DATA, round_name="spring", commitment=SPRING.commitment
    )
    path = rewritten(as_record(judgement, status="verified"), entry.folder)
    assert fatal_rules(path, rounds=[signed_round]) == {"R4"}
    sign_record(path, own)
    assert fatal_rules(path, rounds=[signed_round]) == {"R4"}


def test_swapped_files_are_caught(kept, tmp_path):
    _, path = kept
    other = entry_folder(tmp_path / "other", team="Grace")
    stolen = other.folder / "results" / path.name
    stolen.parent.mkdir()
    shutil.copy(path, stolen)
    assert "R1" in fatal_rules(other.folder)


def test_code_that_was_changed_after_the_run_is_caught(kept):
    entry, _ = kept
    (entry.folder / "entry.json").write_text(
        (entry.folder / "entry.json").read_text().replace("Ada", "Eve"), encoding="utf-8"
    )
    assert "R1" in fatal_rules(entry.folder)


def test_numbers_that_were_invented_as_a_whole_stay_unverified(kept):
    """Whoever invents raw values and all that follows from them is believed by nobody."""
    entry, _ = kept
    invented = kept_judgement(50.0, entry=entry, data_sha256=DATA)
    path = rewritten(as_record(invented), entry.folder)
    assert fatal_rules(path) == set()
    assert {each.status for each in check_files(path) if each.judgement} == {"unverified"}
    assert {each.status for each in read_folder(entry.folder).records} == {"unverified"}


def test_a_round_of_its_own_is_not_the_organisers(kept, tmp_path):
    entry, _ = kept
    judgement = kept_judgement(
        entry=entry, data_sha256=DATA, round_name="spring", commitment="0" * 64
    )
    path = rewritten(as_record(judgement, status="verified"), entry.folder)
    write_round(SPRING.public(), tmp_path / "mine" / "rounds" / "spring.json")
    assert "R2" in fatal_rules(path, rounds=[SPRING])
    assert json.loads(path.read_text())["details"]

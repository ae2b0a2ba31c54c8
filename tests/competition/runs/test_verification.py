"""Verification finds what was changed, wherever it was."""

import json
from dataclasses import replace

import pytest
from example_judgements import SPRING, entry_folder, kept_judgement
from parts import hide_package, require_part

from tinytorch.competition import verification as record_status
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import write_round
from tinytorch.competition.run_files import keep_run, record_text
from tinytorch.competition.signing import new_key, sign_record, signature_path
from tinytorch.competition.submissions import submit
from tinytorch.competition.verification import check_files, findings_in
from tinytorch.errors import SettingError

DATA = "da" * 32


def verify(path, **given):
    return findings_in(check_files(path, **given))


@pytest.fixture(autouse=True)
def _questions_are_known(monkeypatch):
    monkeypatch.setattr(record_status, "_questions_sha256", lambda event, found, heats: DATA)


@pytest.fixture
def entry(tmp_path):
    return entry_folder(tmp_path / "mine")


def judgement_of(entry, **changes):
    return kept_judgement(entry=entry, **({"data_sha256": DATA} | changes))


def test_nothing_is_found_where_nothing_was_changed(entry, tmp_path):
    path = keep_run(judgement_of(entry), entry)
    submit(entry.folder, tmp_path / "all")
    for each in (path, entry.folder, entry.folder / "entry.json", tmp_path / "all"):
        assert verify(each) == ()


def test_a_changed_number_is_found(entry):
    path = keep_run(judgement_of(entry), entry)
    path.write_text(path.read_text().replace("12.5", "12.6"))
    (found,) = verify(path)
    assert found.rule == "R1"
    assert "the hash does not fit" in found.seen
    (found,) = verify(entry.folder)
    assert found.seen.startswith(f"results/{path.name}: the hash does not fit")


def test_a_score_that_was_written_by_hand_is_found(entry):
    record = as_record(judgement_of(entry))
    details = record.details | {"score": record.details["score"] | {"low": 9.0}}
    path = entry.folder / "results" / "run.json"
    path.parent.mkdir()
    path.write_text(record_text(replace(record, details=details)))
    assert [found.rule for found in verify(path)] == ["R3"]


def test_other_questions_than_those_of_the_seed_are_found(entry):
    path = keep_run(judgement_of(entry, data_sha256="0" * 64), entry)
    (found,) = verify(path)
    assert found.rule == "R2"
    assert "practice" in found.seen


def test_a_round_is_known_from_the_folder_or_given(entry, tmp_path):
    judgement = judgement_of(entry, round_name="spring", commitment=SPRING.commitment)
    path = keep_run(judgement, entry)
    (found,) = verify(path)
    assert (found.rule, found.severity) == ("R2", "warning")
    assert verify(path, rounds=[SPRING]) == ()
    submit(entry.folder, tmp_path / "all")
    write_round(SPRING.public(), tmp_path / "all" / "rounds" / "spring.json")
    assert verify(tmp_path / "all") == ()


def test_a_signature_that_does_not_hold_is_found(entry, tmp_path):
    require_part("cryptography")
    path = keep_run(judgement_of(entry), entry)
    sign_record(path, new_key(tmp_path / "key"))
    assert verify(path) == ()
    sidecar = signature_path(path)
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"signature": "AAAA"}))
    assert [found.rule for found in verify(path)] == ["R4"]


def test_without_the_package_a_signature_is_a_doubt(entry, tmp_path, monkeypatch):
    require_part("cryptography")
    path = keep_run(judgement_of(entry), entry)
    sign_record(path, new_key(tmp_path / "key"))
    sign_record(keep_run(judgement_of(entry, seed=5), entry), new_key(tmp_path / "other"))
    hide_package(monkeypatch, "cryptography")
    for place, count in ((path, "1 record"), (entry.folder, "2 records")):
        (found,) = verify(place)
        assert (found.rule, found.severity) == ("R4", "warning")
        assert f"the signature of {count} was not checked" in found.seen
        assert ".[sign]" in found.fix
    assert {each.status for each in check_files(path) if each.judgement} == {
        "signature not checked"
    }


def test_files_that_did_not_run_are_found(entry, tmp_path):
    keep_run(judgement_of(entry), entry)
    done = submit(entry.folder, tmp_path / "all")
    manifest = done.folder / "entry.json"
    manifest.write_text(manifest.read_text().replace("0.99", "0.999"))
    (found,) = verify(tmp_path / "all")
    assert (found.rule, found.severity) == ("R1", "fatal")
    assert found.seen.endswith("entry.json: the files of the entry are not those that ran")
    manifest.write_text("{")
    assert [found.rule for found in verify(tmp_path / "all")] == ["E1"]


def test_former_versions_are_told_as_history(entry):
    keep_run(judgement_of(replace(entry, sha256="00" * 32)), entry)
    keep_run(judgement_of(entry), entry)
    (found,) = verify(entry.folder)
    assert found.severity == "warning"
    assert "1 of 2 runs are of former versions" in found.seen


def test_a_copy_is_told(entry):
    path = keep_run(judgement_of(entry), entry)
    (path.parent / "9.json").write_bytes(path.read_bytes())
    (found,) = verify(entry.folder)
    assert found.severity == "warning"
    assert f"a copy of results/{path.name}" in found.seen


def test_what_is_no_record_is_found(entry):
    path = keep_run(judgement_of(entry), entry)
    (path.parent / "x.pkl").write_bytes(b"")
    (found,) = verify(entry.folder)
    assert found.seen == "results/x.pkl: no record: its name shows it"


def test_files_come_with_their_status(entry, tmp_path):
    judgement = judgement_of(entry, round_name="spring", commitment=SPRING.commitment)
    path = keep_run(judgement, entry, status="verified")
    first, manifest = check_files(path, rounds=[SPRING])
    assert (first.status, first.judgement, manifest.findings) == ("verified", judgement, ())


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match="there is no file or folder"):
        verify(tmp_path / "none")

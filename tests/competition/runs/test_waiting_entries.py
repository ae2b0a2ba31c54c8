"""Who waits for the organiser, who was judged before, and who cannot be judged."""

import pytest
from example_judgements import SPRING, entry_folder, kept_judgement

from tinytorch.competition import verification as record_status
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run
from tinytorch.competition.verification import check_files, find_waiting

DATA = "da" * 32


@pytest.fixture(autouse=True)
def _questions_are_known(monkeypatch):
    monkeypatch.setattr(record_status, "_questions_sha256", lambda event, found, heats: DATA)


def waiting_in(folder):
    return find_waiting(folder, SPRING, files=check_files(folder, rounds=[SPRING]))


def keep(entry, *, is_verified=False, **changes):
    in_spring = {"round_name": "spring", "commitment": SPRING.commitment} if is_verified else {}
    found = kept_judgement(entry=entry, **({"data_sha256": DATA} | in_spring | changes))
    return keep_run(found, entry, status="verified" if is_verified else "unverified")


def test_an_entry_waits_until_it_has_a_verified_run_in_the_round(tmp_path):
    entry = entry_folder(tmp_path / "ada" / "one")
    assert waiting_in(tmp_path).ready == {"ada/one": entry}
    keep(entry)
    assert waiting_in(tmp_path).ready == {"ada/one": entry}
    keep(entry, is_verified=True)
    found = waiting_in(tmp_path)
    assert (found.ready, found.done, found.changed) == ({}, ("ada/one",), ())


def test_an_entry_whose_judge_died_still_waits(tmp_path):
    entry = entry_folder(tmp_path / "one")
    keep(entry, is_verified=True, findings=(finding("T7", "it has not ended"),), heats=())
    assert waiting_in(tmp_path).ready == {"one": entry}


def test_a_verified_run_of_another_version_is_none_of_this_entry(tmp_path):
    keep(entry_folder(tmp_path / "one"), is_verified=True)
    changed = entry_folder(tmp_path / "one", description="new")
    keep(changed)
    assert waiting_in(tmp_path).ready == {"one": changed}


def test_what_was_changed_is_told_and_others_still_wait(tmp_path):
    fine = entry_folder(tmp_path / "fine")
    path = keep(entry_folder(tmp_path / "odd"))
    path.write_text("{}")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "entry.json").write_text("{")
    found = waiting_in(tmp_path)
    assert found.ready == {"fine": fine}
    assert [(each.shown, each.reason[:3]) for each in found.changed] == [
        ("broken", "E1:"),
        ("odd", "R1:"),
    ]


def test_a_run_that_only_says_it_is_verified_is_not_done(tmp_path):
    keep(entry_folder(tmp_path / "one"), is_verified=True, data_sha256="0" * 64)
    found = waiting_in(tmp_path)
    assert found.done == ()
    assert found.changed[0].reason.startswith("R2: its questions are not those of the seed")

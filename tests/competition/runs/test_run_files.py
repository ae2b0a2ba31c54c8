"""Every run has a file, which is written once and found again."""

import pytest
from example_judgements import entry_folder, kept_judgement

from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.run_files import (
    entry_folders,
    keep_run,
    path_below,
    read_record_file,
    run_files,
    run_name,
)
from tinytorch.errors import RecordError, SettingError


def test_a_run_is_kept_beside_its_entry(tmp_path):
    entry = entry_folder(tmp_path)
    judgement = kept_judgement(entry=entry)
    path = keep_run(judgement, entry)
    assert path == keep_run(judgement, tmp_path)
    assert path.parent == tmp_path / "results"
    assert path.name == f"20260305T100000Z-{as_record(judgement).hash[:12]}.json"
    assert read_record_file(path) == as_record(judgement)


def test_the_status_is_in_the_record(tmp_path):
    path = keep_run(kept_judgement(), tmp_path, status="verified")
    assert read_record_file(path).details["status"] == "verified"


def test_another_file_of_that_name_is_not_overwritten(tmp_path):
    other = keep_run(kept_judgement(3.0), tmp_path)
    name = run_name(as_record(kept_judgement()))
    other.rename(other.with_name(name))
    with pytest.raises(RecordError, match="is there already and holds another run"):
        keep_run(kept_judgement(), tmp_path)


def test_results_may_not_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "results").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingError, match="is a link; runs are kept in a folder of the entry"):
        keep_run(kept_judgement(), tmp_path / "entry")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RecordError, match=r"the run cannot be written to .*results"):
        keep_run(kept_judgement(), tmp_path)


def test_runs_are_found_wherever_they_lie(tmp_path):
    places = [tmp_path, tmp_path / "b" / "c", tmp_path / "a"]
    kept = [keep_run(kept_judgement(seed=seed), place) for seed, place in enumerate(places)]
    (tmp_path / "rounds" / "results").mkdir(parents=True)
    (tmp_path / "rounds" / "results" / "x.json").write_text("{}")
    (tmp_path / "results" / ".x.json.partial").write_text("{")
    damaged = []
    assert set(run_files(tmp_path, damaged)) == set(kept)
    assert damaged == []


def test_what_else_lies_there_is_listed(tmp_path):
    path = keep_run(kept_judgement(), tmp_path)
    (path.parent / "model.pkl").write_bytes(b"\x80\x04.")
    (path.parent / "link.json").symlink_to(path)
    (tmp_path / "up").symlink_to(tmp_path)
    damaged = []
    assert list(run_files(tmp_path, damaged)) == [path]
    assert {each.path: each.reason for each in damaged} == {
        "up": "a link, not followed",
        "results/link.json": "a link, not followed",
        "results/model.pkl": "no record: its name shows it",
    }


def test_a_path_shows_letters_that_hide(tmp_path):
    assert path_below(tmp_path, tmp_path / "a" / "b\u202e\n.json") == r"a/b\u202e\n.json"


def test_entries_are_found_wherever_they_lie_and_links_are_not_followed(tmp_path):
    for name in ("b/one", "a/two", "a/two/inner", ".hidden/x", "rounds/y"):
        entry_folder(tmp_path / "all" / name)
    entry_folder(tmp_path / "elsewhere")
    (tmp_path / "all" / "link").symlink_to(tmp_path / "elsewhere")
    found = [path_below(tmp_path / "all", each) for each in entry_folders(tmp_path / "all")]
    assert found == ["a/two", "b/one"]

"""An entry is submitted with all of its runs."""

from dataclasses import replace

import pytest
from example_judgements import entry_folder, kept_judgement
from parts import require_part

from tinytorch.competition.entry import read_entry
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run
from tinytorch.competition.signing import check_signature, new_key
from tinytorch.competition.submissions import folder_name, submit
from tinytorch.errors import RecordError, SettingError

FATAL = (finding("T3", "a question that came again took no time"),)


@pytest.fixture
def entry(tmp_path):
    return entry_folder(tmp_path / "mine", team="Team Ada")


def keep(entry, **changes):
    return keep_run(kept_judgement(entry=entry, **changes), entry)


def test_the_copy_is_the_entry_with_its_runs(entry, tmp_path):
    path = keep(entry)
    done = submit(entry.folder, tmp_path / "all")
    assert done.folder == tmp_path / "all" / "mlp_sprint" / "team-ada" / entry.sha256[:12]
    assert read_entry(done.folder).sha256 == entry.sha256
    assert (done.folder / "results" / path.name).read_bytes() == path.read_bytes()
    assert (done.added, done.runs, done.older) == (1, 1, 0)
    assert str(done) == f"{done.folder}: 1 run, 1 new"


def test_files_of_code_go_along(tmp_path):
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "model.py").write_text("def make(reference, techniques):\n    return reference\n")
    (folder / "parts" / "more.py").write_text("")
    entry = entry_folder(folder, code="model.py:make", techniques=())
    keep(entry)
    done = submit(folder, tmp_path / "all")
    assert (done.folder / "parts" / "more.py").is_file()
    assert read_entry(done.folder).sha256 == entry.sha256


def test_once_more_adds_what_is_new(entry, tmp_path):
    keep(entry)
    submit(entry.folder, tmp_path / "all")
    keep(entry, seed=1)
    again = submit(entry.folder, tmp_path / "all")
    assert (again.added, again.runs) == (1, 2)
    assert submit(entry.folder, tmp_path / "all").added == 0


def test_bad_runs_are_submitted_with_the_good_ones(entry, tmp_path):
    keep(entry, findings=FATAL, created_at="2026-03-04T00:00:00Z")
    keep(entry)
    assert submit(entry.folder, tmp_path / "all").runs == 2


def test_runs_of_former_versions_are_history(entry, tmp_path):
    keep(replace(entry, sha256="00" * 32))
    with pytest.raises(SettingError, match="its runs are of former versions; run the entry first"):
        submit(entry.folder, tmp_path / "all")
    keep(entry)
    done = submit(entry.folder, tmp_path / "all")
    assert (done.runs, done.older) == (2, 1)
    assert "1 of former versions" in str(done)


def test_without_a_run_there_is_nothing_to_submit(entry, tmp_path):
    with pytest.raises(SettingError, match="it has no run; run the entry first"):
        submit(entry.folder, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_last_run_that_broke_a_rule_is_submitted_only_on_purpose(entry, tmp_path):
    keep(entry, created_at="2026-03-04T00:00:00Z")
    keep(entry, findings=FATAL)
    with pytest.raises(SettingError, match="the last run broke rule T3: a question that came"):
        submit(entry.folder, tmp_path / "all")
    assert submit(entry.folder, tmp_path / "all", even_invalid=True).runs == 2


def test_a_damaged_run_is_not_left_out_in_silence(entry, tmp_path):
    path = keep(entry)
    path.write_text(path.read_text().replace("12.5", "13.5"))
    with pytest.raises(RecordError, match="the hash does not fit"):
        submit(entry.folder, tmp_path / "all")


def test_nobody_verifies_themselves(entry, tmp_path):
    keep_run(kept_judgement(entry=entry), entry, status="verified")
    with pytest.raises(SettingError, match="which only the organiser's own run can be"):
        submit(entry.folder, tmp_path / "all")


def test_a_copy_that_was_changed_is_found(entry, tmp_path):
    keep(entry)
    done = submit(entry.folder, tmp_path / "all")
    (done.folder / "entry.json").write_text(
        (done.folder / "entry.json").read_text().replace("0.99", "0.999")
    )
    with pytest.raises(RecordError, match="holds other files than the entry"):
        submit(entry.folder, tmp_path / "all")


def test_a_run_that_is_another_there_is_found(entry, tmp_path):
    path = keep(entry)
    done = submit(entry.folder, tmp_path / "all")
    other = keep(entry, seed=5)
    (done.folder / "results" / path.name).write_bytes(other.read_bytes())
    with pytest.raises(RecordError, match="is there already and holds another run"):
        submit(entry.folder, tmp_path / "all")


def test_links_in_the_folder_of_submissions_are_refused(entry, tmp_path):
    keep(entry)
    done = submit(entry.folder, tmp_path / "all")
    (tmp_path / "elsewhere").mkdir()
    for path in (done.folder / "results").iterdir():
        path.unlink()
    (done.folder / "results").rmdir()
    (done.folder / "results").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingError, match="results is a link"):
        submit(entry.folder, tmp_path / "all")


def test_runs_are_signed_with_a_key(entry, tmp_path):
    require_part("cryptography")
    key = new_key(tmp_path / "key")
    keep(entry)
    done = submit(entry.folder, tmp_path / "all", key=tmp_path / "key")
    (copy,) = (done.folder / "results").glob("*.json")
    record_hash = kept_hash(entry)
    assert check_signature(copy, record_hash).signer == key.public


def kept_hash(entry):
    from tinytorch.competition.judgement_record import as_record

    return as_record(kept_judgement(entry=entry)).hash


def test_a_target_that_cannot_be_written_is_named(entry, tmp_path):
    keep(entry)
    (tmp_path / "all").write_text("a file")
    with pytest.raises(SettingError, match="cannot be written"):
        submit(entry.folder, tmp_path / "all")


@pytest.mark.parametrize(
    ("team", "name"),
    [
        ("Team Ada", "team-ada"),
        ("../../etc", "etc"),
        ("你好", "team"),
        ("x" * 60, "x" * 40),
        ("Ünï-cödé!", "uni-code"),
    ],
)
def test_a_team_has_a_harmless_folder(team, name):
    assert folder_name(team) == name

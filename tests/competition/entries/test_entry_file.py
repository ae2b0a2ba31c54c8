"""Entries are read from folders of strangers: nothing outside is touched, and nothing is run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from example_entries import MAKE, PLAIN, a_code_entry, an_entry, write_manifest

from tinytorch.competition import entry as entry_file
from tinytorch.competition.entry import (
    MANIFEST,
    EntryError,
    Technique,
    entry_files,
    hash_entry,
    read_entry,
    write_entry,
)
from tinytorch.competition.entry_checks import contender_of
from tinytorch.errors import SettingError


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = an_entry("fused-layers", description="zwölf\nBoxkämpfer")
    assert write_entry(entry, tmp_path / "new") == tmp_path / "new" / MANIFEST
    found = read_entry(tmp_path / "new")
    assert replace(found, sha256="") == entry
    assert found.folder == (tmp_path / "new").resolve()
    assert read_entry(tmp_path / "new" / MANIFEST) == found


def test_the_hash_is_known(tmp_path: Path) -> None:
    # By hand: sha256 of {"files":{},"manifest":{...}} in canonical JSON.
    expected = "378c1173d8b471bec0de43273f6903d57ac348582d1286cf47421b190b6256c6"
    assert hash_entry(replace(PLAIN, folder=tmp_path)) == expected


def test_the_hash_depends_on_content_and_not_on_form(tmp_path: Path) -> None:
    one, other = write_manifest(tmp_path / "a"), tmp_path / "b"
    write_entry(PLAIN, other)
    assert (one / MANIFEST).read_bytes() != (other / MANIFEST).read_bytes()
    assert read_entry(one).sha256 == read_entry(other).sha256
    assert read_entry(write_manifest(one, team="B")).sha256 != read_entry(other).sha256


def test_the_hash_covers_every_file_that_code_may_read(tmp_path: Path) -> None:
    first = a_code_entry(tmp_path).sha256
    for name in ("helper.py", "numbers/table.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
        assert read_entry(tmp_path).sha256 != first
        first = read_entry(tmp_path).sha256
    (tmp_path / "numbers/table.txt").write_text("2")
    assert read_entry(tmp_path).sha256 != first


def test_results_and_hidden_files_are_no_part_of_an_entry(tmp_path: Path) -> None:
    before = a_code_entry(tmp_path)
    for name in ("results/run.json", "__pycache__/model.pyc", ".git/config", ".notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert read_entry(tmp_path).sha256 == before.sha256
    assert entry_files(before) == ("model.py",)


def test_without_code_only_the_weights_count(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.bin")
    (tmp_path / "w.bin").write_bytes(b"1")
    before = read_entry(tmp_path)
    (tmp_path / "README.md").write_text("hello")
    assert entry_files(before) == ("w.bin",)
    assert read_entry(tmp_path).sha256 == before.sha256
    (tmp_path / "w.bin").write_bytes(b"2")
    assert read_entry(tmp_path).sha256 != before.sha256


def test_reading_runs_no_code(tmp_path: Path) -> None:
    bomb = f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n"
    a_code_entry(tmp_path, bomb + MAKE)
    (tmp_path / "conftest.py").write_text(bomb)
    assert read_entry(tmp_path).code == "model.py:make"
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(EntryError, match="no entry at"):
        read_entry(tmp_path / "nowhere")
    with pytest.raises(EntryError, match=r"no entry\.json in"):
        read_entry(tmp_path)
    with pytest.raises(EntryError, match=r"'w\.bin' cannot be read"):
        read_entry(write_manifest(tmp_path, weights="w.bin"))
    with pytest.raises(EntryError, match=r"no 'model\.py' beside entry\.json"):
        read_entry(write_manifest(tmp_path, code="model.py:make"))


def test_only_a_manifest_or_its_folder_is_an_entry(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(EntryError, match=r"give the folder of entry\.json"):
        read_entry(other)
    with pytest.raises(EntryError):
        read_entry("a\0b")


def test_links_do_not_leave_the_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("seed")
    folder = write_manifest(tmp_path / "entry", weights="w.bin")
    (folder / "w.bin").symlink_to(secret)
    with pytest.raises(EntryError, match="a link that leaves the folder"):
        read_entry(folder)
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(secret)
    with pytest.raises(EntryError, match="a link that leaves the folder"):
        read_entry(folder)


@pytest.mark.parametrize("target", ["..", "../secret"])
def test_links_to_other_folders_are_refused_where_code_may_follow_them(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "secret").mkdir()
    a_code_entry(tmp_path / "entry")
    (tmp_path / "entry" / "more").symlink_to(target)
    with pytest.raises(EntryError, match="'more' is a link that leaves the folder"):
        read_entry(tmp_path / "entry")


def test_a_link_inside_of_the_folder_is_fine(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.bin")
    (tmp_path / "real.bin").write_bytes(b"1")
    (tmp_path / "w.bin").symlink_to("real.bin")
    assert read_entry(tmp_path).weights == "w.bin"


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    write_manifest(tmp_path / "entry")
    (tmp_path / "link").symlink_to("entry")
    assert read_entry(tmp_path / "link").folder == (tmp_path / "entry").resolve()


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.bin")
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(EntryError, match="no ordinary file"):
        read_entry(tmp_path)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(entry_file.LARGEST_FILES_BYTES + 1)  # a hole: no bytes are written
    with pytest.raises(EntryError, match=r"268,435,457 bytes of 268,435,456"):
        read_entry(tmp_path)
    (tmp_path / MANIFEST).write_text(" " * (entry_file.LARGEST_MANIFEST_BYTES + 1))
    with pytest.raises(EntryError, match=r"'entry\.json' has 65,537 bytes"):
        read_entry(tmp_path)


def test_all_files_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_code_entry(tmp_path)
    (tmp_path / "a.txt").write_text("a" * 60)
    monkeypatch.setattr(entry_file, "LARGEST_FILES_BYTES", 100)
    with pytest.raises(EntryError, match="bytes of 40"):
        read_entry(tmp_path)
    monkeypatch.setattr(entry_file, "MOST_FILES", 1)
    with pytest.raises(EntryError, match="more than 1 files"):
        read_entry(tmp_path)


def test_a_contender_has_absolute_paths_and_all_settings(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.bin", techniques=["int8-dynamic", "fused-layers"])
    (tmp_path / "w.bin").write_bytes(b"1")
    found = contender_of(read_entry(tmp_path))
    assert (found.event, found.code) == ("mlp_sprint", None)
    assert found.weights == str(tmp_path.resolve() / "w.bin")
    assert [each.name for each in found.techniques] == ["int8-dynamic", "fused-layers"]
    (name, settings), *others = found.techniques[0].transforms
    assert (name, settings["mode"], settings["keep"], others) == ("Quantize", "dynamic", [], [])


def test_an_entry_without_techniques_is_the_reference() -> None:
    found = contender_of(PLAIN)
    assert (found.techniques, found.weights, found.code) == ((), None, None)


def test_a_technique_is_switched_off_by_its_name(tmp_path: Path) -> None:
    entry = an_entry("int8-dynamic", "fused-layers")
    left = contender_of(entry, without="int8-dynamic").techniques
    assert [each.name for each in left] == ["fused-layers"]
    with pytest.raises(SettingError, match="declares no technique 'kv-cache'; it declares int8"):
        contender_of(entry, without="kv-cache")


def test_techniques_of_code_are_names_that_it_is_told(tmp_path: Path) -> None:
    entry = a_code_entry(tmp_path, techniques=(Technique("fused-layers"), Technique("my-own")))
    found = contender_of(entry, without="fused-layers")
    assert found.code == f"{tmp_path.resolve() / 'model.py'}:make"
    assert found.techniques == (Technique("my-own"),)

import json

import pytest
from measure.imaginary import ceilings

from tinytorch.measure.ceilings import (
    ceilings_file,
    load_ceilings,
    save_ceilings,
)


def test_every_device_and_fingerprint_has_its_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    keys = [("cpu", "a"), ("cpu", "b"), ("cuda:0", "a"), ("cuda:1", "a")]
    files = {ceilings_file(*key) for key in keys}
    assert len(files) == 4
    assert all(":" not in file.name for file in files)


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "new folder" / "ceilings.json"
    assert save_ceilings(ceilings(), path) is None
    assert load_ceilings(path) == ceilings()


def test_there_may_be_nothing_yet(tmp_path):
    assert load_ceilings(tmp_path / "missing.json") is None


def spoiled(change):
    content = {"schema": 1, "ceilings": ceilings().to_dict()}
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "{}",
        "null",
        '{"schema": 1, "ceilings": {}}',
        spoiled(lambda content: content.update(schema=99)),
        spoiled(lambda content: content["ceilings"].pop("rates")),
        spoiled(lambda content: content["ceilings"].update(surprise=1)),
        spoiled(lambda content: content["ceilings"].update(bandwidths=[])),
        spoiled(lambda content: content["ceilings"]["rates"][0]["samples"].update(values=[])),
        spoiled(lambda content: content["ceilings"]["rates"][0]["samples"].update(values="x")),
    ],
)
def test_a_file_that_makes_no_sense_is_measured_again(tmp_path, content):
    path = tmp_path / "ceilings.json"
    path.write_text(content)
    assert load_ceilings(path) is None


def test_bytes_that_are_no_text_are_measured_again(tmp_path):
    path = tmp_path / "ceilings.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert load_ceilings(path) is None


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    note = save_ceilings(ceilings(), in_the_way / "ceilings.json")
    assert "not kept for the next time" in note
    assert "cannot be written" in note

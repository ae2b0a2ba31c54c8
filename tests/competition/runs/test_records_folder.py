"""A folder of submissions is read whatever lies in it."""

import io
import json
import os
import pickle
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from example_judgements import SPRING, entry_folder, kept_judgement, some_accuracy
from parts import hide_package, require_part

from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import write_round
from tinytorch.competition.run_files import keep_run, record_text
from tinytorch.competition.signing import new_key, sign_record
from tinytorch.competition.submissions import submit
from tinytorch.competition.verification import read_folder
from tinytorch.errors import SettingError


def in_spring(**changes):
    return kept_judgement(**({"round_name": "spring", "commitment": SPRING.commitment} | changes))


def test_an_empty_folder_has_nothing(tmp_path):
    found = read_folder(tmp_path)
    assert (found.records, found.damaged, found.rounds) == ((), (), ())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match="there is no folder"):
        read_folder(tmp_path / "none")


def test_runs_come_back_oldest_first(tmp_path):
    days = [7, 3, 5]
    made = [kept_judgement(seed=day, created_at=f"2026-03-0{day}T00:00:00Z") for day in days]
    paths = [keep_run(each, tmp_path / str(day)) for each, day in zip(made, days, strict=True)]
    found = read_folder(tmp_path)
    assert [run.judgement.created_at[:10] for run in found.records] == [
        "2026-03-03",
        "2026-03-05",
        "2026-03-07",
    ]
    assert found.records[2].path == f"7/results/{paths[0].name}"
    assert found.records[2].sha256 == as_record(made[0]).hash
    assert found.damaged == ()


def test_what_was_submitted_is_there(tmp_path):
    entry = entry_folder(tmp_path / "mine")
    keep_run(kept_judgement(entry=entry), entry)
    submit(tmp_path / "mine", tmp_path / "all")
    (run,) = read_folder(tmp_path / "all").records
    assert run.judgement == kept_judgement(entry=entry)
    assert run.path.startswith(f"mlp_sprint/ada/{entry.sha256[:12]}/results/")


def test_a_copy_counts_once(tmp_path):
    path = keep_run(kept_judgement(), tmp_path)
    (path.parent / "again.json").write_bytes(path.read_bytes())
    found = read_folder(tmp_path)
    assert len(found.records) == 1
    assert found.damaged[0].path == "results/again.json"
    assert found.damaged[0].reason == f"a copy of results/{path.name}, which counts once"


def test_a_changed_score_is_damage_even_with_a_new_hash(tmp_path):
    record = as_record(kept_judgement())
    details = record.details | {"score": record.details["score"] | {"value": 99.0}}
    forged = replace(record, details=details)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text(record_text(forged))
    found = read_folder(tmp_path)
    assert found.records == ()
    assert found.damaged[0].reason.startswith("R3: the score says value 99.0")


def test_rounds_are_read_and_verify(tmp_path):
    write_round(SPRING.public(), tmp_path / "rounds" / "spring.json")
    (tmp_path / "rounds" / "other.json").write_text("{}")
    keep_run(in_spring(), tmp_path / "a", status="verified")
    found = read_folder(tmp_path)
    assert found.rounds == (SPRING.public(),)
    assert found.damaged[0].path == "rounds/other.json"
    assert found.records[0].status == "verified, seed not revealed"


def test_a_signature_verifies_in_a_round_with_a_key(tmp_path):
    require_part("cryptography")
    key = new_key(tmp_path / "key")
    write_round(replace(SPRING.public(), public_key=key.public), tmp_path / "rounds" / "s.json")
    unsigned = keep_run(in_spring(seed=1), tmp_path / "a", status="verified")
    signed = keep_run(in_spring(seed=2), tmp_path / "a", status="verified")
    sign_record(signed, key)
    found = read_folder(tmp_path)
    (run,) = found.records
    assert (run.path, run.status) == (f"a/results/{signed.name}", "verified")
    assert run.signer == key.public
    (wrong,) = found.damaged
    assert wrong.path == f"a/results/{unsigned.name}"
    assert wrong.reason.startswith("R4: it says that it is verified, but the key")


def test_without_the_package_a_signed_run_has_a_status_of_its_own(tmp_path, monkeypatch):
    require_part("cryptography")
    key, other = new_key(tmp_path / "key"), new_key(tmp_path / "other")
    write_round(replace(SPRING.public(), public_key=key.public), tmp_path / "rounds" / "s.json")
    for seed, signing in ((1, key), (2, other), (3, None)):
        path = keep_run(in_spring(seed=seed), tmp_path / "a", status="verified")
        if signing is not None:
            sign_record(path, signing)
    hide_package(monkeypatch, "cryptography")
    found = read_folder(tmp_path)
    assert [(run.status, run.signer) for run in found.records] == [("signature not checked", "")]
    assert [each.reason[:2] for each in found.damaged] == ["R4", "R4"]


def test_what_says_it_is_verified_and_is_not_does_not_count(tmp_path):
    """A round that nobody knows, the practice round, other questions than those of the seed."""
    write_round(SPRING, tmp_path / "rounds" / "spring.json", reveal=True)
    keep_run(in_spring(commitment="0" * 64), tmp_path / "a", status="verified")
    keep_run(kept_judgement(), tmp_path / "b", status="verified")
    early = "2026-02-01T00:00:00Z"
    keep_run(in_spring(created_at=early), tmp_path / "c", status="verified")
    found = read_folder(tmp_path)
    assert found.records == ()
    assert [each.reason[:3] for each in found.damaged] == ["R2:", "R2:", "R2:"]


def test_a_wrong_signature_does_not_count_whatever_the_run_says(tmp_path):
    require_part("cryptography")
    path = keep_run(kept_judgement(), tmp_path / "a")
    sidecar = sign_record(path, new_key(tmp_path / "key"))
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"signature": "AAAA"}))
    found = read_folder(tmp_path)
    assert found.records == ()
    assert found.damaged[0].reason.startswith("R4: the signature does not hold")


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (open, (self.trace, "w"))


def hostile_files(trace):
    """Give names and contents of files that somebody might send."""
    bomb = pickle.dumps(Bomb(trace))
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("../../out.json", "{}")
    record = as_record(kept_judgement())
    text, fields = record_text(record), record.to_dict()
    hostile_name = replace(record, name="mlp_sprint/closed/0.99/\u202eeve")
    return {
        "pickle.json": bomb,
        "array.json": array.getvalue(),
        "zip.json": archive.getvalue(),
        "pickle.pkl": bomb,
        "code.py": f"open({trace!r}, 'w')".encode(),
        "deep.json": b'{"a":' * 50_000,
        "brackets.json": b"[" * 10_000_000,
        "huge.json": b" " * (9 << 20),
        "large number.json": text.replace("12.5", "1e400").encode(),
        "many digits.json": text.replace("12.5", "9" * 5000).encode(),
        "nan.json": text.replace("12.5", "NaN").encode(),
        "empty.json": b"",
        "null.json": b"null",
        "list.json": b"[1, 2]",
        "no text.json": b"\xff\xfe\x00",
        "comparison.json": record_text(replace(record, kind="comparison")).encode(),
        "bidirectional.json": record_text(hostile_name).encode(),
        "surrogate.json": json.dumps(fields | {"kind": "\ud800"}).encode(),
        "samples.json": json.dumps(fields | {"samples": {"a": 5}, "hash": 5}).encode(),
        "\u202egnp.json": b"{}",
        "-rf.json": b"{}",
        "<script>.json": b"{}",
        "line\nend.json": b"{}",
    }


def test_hostile_files_are_listed_and_do_nothing(tmp_path):
    trace = tmp_path / "trace"
    folder = tmp_path / "all"
    fine = keep_run(kept_judgement(), folder / "entry")
    files = hostile_files(str(trace))
    for name, content in files.items():
        (fine.parent / name).write_bytes(content)
    if hasattr(os, "mkfifo"):
        os.mkfifo(fine.parent / "pipe.json")
        files["pipe.json"] = b""
    (fine.parent / "folder.json").mkdir()
    found = read_folder(folder)
    assert [run.path for run in found.records] == [f"entry/results/{fine.name}"]
    assert len(found.damaged) == len(files)
    assert all(each.path.isprintable() and each.reason.isprintable() for each in found.damaged)
    assert not trace.exists()


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    secret = keep_run(kept_judgement(), tmp_path / "secret")
    results = tmp_path / "all" / "entry" / "results"
    results.mkdir(parents=True)
    (results / "file.json").symlink_to(secret)
    (tmp_path / "all" / "folder").symlink_to(tmp_path / "secret")
    (tmp_path / "all" / "loop").symlink_to(tmp_path / "all")
    (tmp_path / "all" / "rounds").symlink_to(tmp_path / "secret")
    found = read_folder(tmp_path / "all")
    assert found.records == ()
    assert sorted(each.path for each in found.damaged) == [
        "entry/results/file.json",
        "folder",
        "loop",
        "rounds",
    ]


@pytest.mark.slow
def test_hundreds_of_runs_of_fifty_thousand_examples_are_read(tmp_path):
    accuracy = some_accuracy(count=50_000)
    for seed in range(300):
        keep_run(kept_judgement(seed=seed, accuracy=accuracy), tmp_path / str(seed % 20))
    assert len(read_folder(tmp_path).records) == 300

"""Records are signed, and every signature that does not hold is found."""

import json
import shutil
import stat
import subprocess

import pytest
from example_judgements import kept_judgement
from parts import hide_package, require_part

from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.run_files import record_text
from tinytorch.competition.signing import (
    check_signature,
    new_key,
    public_part,
    read_key,
    sign_record,
    signature_path,
)
from tinytorch.errors import MissingPartError, SettingError

require_part("cryptography")
HASH = as_record(kept_judgement()).hash


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(record_text(as_record(kept_judgement())))
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "organiser")


def test_a_signature_names_its_key(record, key):
    assert check_signature(record, HASH).signer == ""
    assert sign_record(record, key) == signature_path(record)
    found = check_signature(record, HASH)
    assert (found.signer, found.findings) == (key.public, ())
    assert sign_record(record, key) == signature_path(record)


def test_a_key_is_private_and_comes_back(tmp_path):
    made = new_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_key(tmp_path / "key").public == made.public
    assert (tmp_path / "key.pub").read_text() == f"{made.public}\n"
    assert "private" not in repr(made)
    with pytest.raises(SettingError, match="a key is never overwritten"):
        new_key(tmp_path / "key")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_keys_of_openssh_are_read(tmp_path, record):
    def make(name, *options):
        command = ["ssh-keygen", "-q", "-C", "a comment", "-f", str(tmp_path / name), *options]
        subprocess.run(command, check=True)
        return tmp_path / name

    plain = make("plain", "-t", "ed25519", "-N", "")
    sign_record(record, read_key(plain))
    line = plain.with_suffix(".pub").read_text()
    assert check_signature(record, HASH).signer == public_part(line)
    with pytest.raises(SettingError, match="has a passphrase, which cannot be asked for here"):
        read_key(make("locked", "-t", "ed25519", "-N", "secret"))
    with pytest.raises(SettingError, match="is not of the kind ed25519"):
        read_key(make("curve", "-t", "ecdsa", "-N", ""))
    with pytest.raises(SettingError, match="that is the public part"):
        read_key(plain.with_suffix(".pub"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record": "0" * 64}, "of the record 000000000000, not of this one"),
        ({"signature": "AAAA"}, "another key made it, or it was changed"),
        ({"signature": "!"}, "key or signature are damaged"),
        ({"signature": 5}, "other fields than a signature"),
        ({"public_key": "ssh-ed25519 AAAA"}, "key or signature are damaged"),
        ({"public_key": "ssh-rsa AAAA"}, "is no public key"),
        ({"format": "other"}, "format is not 'tinytorch competition signature'"),
        ({"schema": 2}, "schema is 2"),
        ({"more": "x"}, "other fields than a signature"),
    ],
)
def test_a_signature_that_does_not_hold_is_a_finding(record, key, change, message):
    path = sign_record(record, key)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (found,) = check_signature(record, HASH).findings
    assert found.rule == "R4"
    assert message in found.seen


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 5000, b"\x80\x04.", b"5", b" " * 9000])
def test_a_damaged_signature_is_a_finding(record, content):
    signature_path(record).write_bytes(content)
    found = check_signature(record, HASH)
    assert (found.signer, found.findings[0].rule) == ("", "R4")


def test_the_key_of_another_does_not_pass(record, key, tmp_path):
    path = sign_record(record, new_key(tmp_path / "eve"))
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"public_key": key.public}))
    assert "another key made it" in check_signature(record, HASH).findings[0].seen


def test_the_signature_of_another_record_does_not_pass(record, key, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(record_text(as_record(kept_judgement(3.0))))
    signature_path(record).write_bytes(sign_record(other, key).read_bytes())
    assert "not of this one" in check_signature(record, HASH).findings[0].seen


def test_a_signature_of_another_key_is_not_replaced(record, key, tmp_path):
    sign_record(record, key)
    with pytest.raises(SettingError, match="is there already, and not of this key"):
        sign_record(record, new_key(tmp_path / "other"))


@pytest.mark.parametrize("content", [b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", b"\xff"])
def test_what_is_no_key_is_refused(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SettingError, match="is no private key of OpenSSH; make one with"):
        read_key(tmp_path / "key")


def test_a_key_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"cannot be read .No such file"):
        read_key(tmp_path / "key")


def test_a_public_key_is_known_without_its_comment():
    assert public_part("ssh-ed25519 AAAA me@home\n") == "ssh-ed25519 AAAA"
    with pytest.raises(SettingError, match="is no public key"):
        public_part("ssh-ed25519 AAAA\nssh-ed25519 BBBB")


def test_without_the_package_the_extra_is_named(record, tmp_path, monkeypatch):
    hide_package(monkeypatch, "cryptography")
    with pytest.raises(MissingPartError, match=r"\.\[sign\]"):
        new_key(tmp_path / "key")


def test_without_the_package_a_signature_is_not_checked_and_no_error(record, key, monkeypatch):
    sidecar = sign_record(record, key)
    hide_package(monkeypatch, "cryptography")
    told = check_signature(record, HASH)
    assert (told.signer, told.is_checked, told.findings) == (key.public, False, ())
    assert [each.rule for each in check_signature(record, "another hash").findings] == ["R4"]
    sidecar.unlink()
    assert check_signature(record, HASH).is_checked

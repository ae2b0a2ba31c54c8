"""Signatures of records: Ed25519, with keys in OpenSSH's format.

A signature lies beside its record, in a file of the same name with ``.sig`` at the end. What is
signed is the hash of the record, after words that nothing else begins with, so that a signature
made here cannot be used elsewhere, nor the other way round.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.competition.files import read_fields, write_new
from tinytorch.competition.rules import Finding, finding
from tinytorch.competition.run_files import read_record_file
from tinytorch.errors import MissingPartError, RecordError, SettingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT, SCHEMA = "tinytorch competition signature", 1
DOMAIN = "tinytorch competition record 1"
LARGEST_KEY_BYTES, LARGEST_SIGNATURE_BYTES = 64 << 10, 8 << 10
FIELDS = {"format", "schema", "record", "public_key", "signature"}
WHAT_TO_INSTALL = "install the extra: pip install '.[sign]'"
MAKE_ONE = "make one with `tinytorch compete key`, or with `ssh-keygen -t ed25519 -N ''`"


@dataclass(frozen=True)
class SigningKey:
    """A private key; only its public part is ever shown, as one line of OpenSSH."""

    public: str
    private: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"SigningKey({self.public!r})"


@dataclass(frozen=True)
class SignatureCheck:
    """The key that signed a record ("" without a valid signature), and the findings.

    Where the package for it is missing, the signature was not checked, and the signer is only told.
    """

    signer: str = ""
    findings: tuple[Finding, ...] = ()
    is_checked: bool = True


def new_key(path: str | Path) -> SigningKey:
    """Make a key: the private part at `path`, readable by its owner alone, the public in .pub."""
    with _cryptography():
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    path = Path(path)
    private = Ed25519PrivateKey.generate()
    key = SigningKey(_public_line(private), private)
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    try:
        write_new(path, secret.decode("ascii"), mode=0o600)
        write_new(path.with_name(f"{path.name}.pub"), f"{key.public}\n")
    except FileExistsError as error:
        raise SettingError(
            f"{error.filename} is there already, and a key is never overwritten; "
            "choose another name"
        ) from error
    except OSError as error:
        raise SettingError(f"{path} cannot be written ({error.strerror or error})") from error
    return key


def read_key(path: str | Path) -> SigningKey:
    """Read a private key of Ed25519 in OpenSSH's format, without a passphrase."""
    with _cryptography():
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    try:
        content = Path(path).read_bytes()[:LARGEST_KEY_BYTES]
    except OSError as error:
        raise SettingError(
            f"the key {path} cannot be read ({error.strerror or error}); {MAKE_ONE}"
        ) from error
    try:
        private = load_ssh_private_key(content, password=None)
    except TypeError as error:  # This is how the package says that a password is missing.
        raise SettingError(
            f"the key {path} has a passphrase, which cannot be asked for here; take a key without "
            f"one: {MAKE_ONE}"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "that is the public part; give the other file" if _is_public(content) else MAKE_ONE
        raise SettingError(f"{path} is no private key of OpenSSH; {hint}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise SettingError(f"the key {path} is not of the kind ed25519; {MAKE_ONE}")
    return SigningKey(_public_line(private), private)


def public_part(line: str) -> str:
    """Return an OpenSSH public key without its comment; raise SettingError for anything else.

    >>> public_part("ssh-rsa AAAA me")
    Traceback (most recent call last):
    ...
    tinytorch.errors.SettingError: 'ssh-rsa AAAA me' is no public key; it begins with ssh-ed25519
    """
    parts = line.split()
    if len(parts) < 2 or parts[0] != "ssh-ed25519" or "\n" in line.strip():
        raise SettingError(f"{line[:80]!r} is no public key; it begins with ssh-ed25519")
    return " ".join(parts[:2])


def signature_path(record: Path) -> Path:
    """Return the path of a record's signature."""
    return record.with_name(f"{record.name}.sig")


def sign_record(path: str | Path, key: SigningKey) -> Path:
    """Sign a record and write the signature beside it; one by the same key is kept."""
    path = Path(path)
    record_hash = read_record_file(path).hash
    target = signature_path(path)
    fields = {
        "format": FORMAT,
        "schema": SCHEMA,
        "record": record_hash,
        "public_key": key.public,
        "signature": base64.b64encode(key.private.sign(_signed_text(record_hash))).decode("ascii"),
    }
    try:
        write_new(target, json.dumps(fields, indent=2) + "\n")
    except FileExistsError as error:
        if check_signature(path, record_hash).signer != key.public:
            raise SettingError(
                f"{target} is there already, and not of this key; remove it first"
            ) from error
    return target


def check_signature(path: str | Path, record_hash: str) -> SignatureCheck:
    """Check the signature of a record of this hash. Without one there is no signer, and no finding.

    A package that is missing is no error, so that the rest can be read; `is_checked` tells.
    """
    target = signature_path(Path(path))
    if not os.path.lexists(target):
        return SignatureCheck()
    try:
        fields = _read_signature(target)
        if fields["record"] != record_hash:
            raise RecordError(f"it is of the record {fields['record'][:12]}, not of this one")
        return _check_signer(fields)
    except (RecordError, SettingError) as error:
        return SignatureCheck(findings=(finding("R4", f"the signature does not hold: {error}"),))


def _read_signature(path: Path) -> dict[str, str]:
    fields = read_fields(path, most=LARGEST_SIGNATURE_BYTES, format=FORMAT, schema=SCHEMA)
    texts = {name: fields.get(name) for name in ("record", "public_key", "signature")}
    if fields.keys() != FIELDS or not all(isinstance(each, str) for each in texts.values()):
        raise RecordError("the file has other fields than a signature")
    return {name: str(each) for name, each in texts.items()}


def _check_signer(fields: dict[str, str]) -> SignatureCheck:
    told = public_part(fields["public_key"])
    try:
        return SignatureCheck(_signer(fields))
    except MissingPartError:
        return SignatureCheck(told, is_checked=False)


def _signer(fields: dict[str, str]) -> str:
    """Return the public key that made this signature, after verifying it."""
    with _cryptography():
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    signer = public_part(fields["public_key"])
    try:
        public: Any = load_ssh_public_key(signer.encode("utf-8"))
        signature = base64.b64decode(fields["signature"], validate=True)
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise RecordError("key or signature are damaged") from error
    if not isinstance(public, Ed25519PublicKey):
        raise RecordError("the key is not of the kind ed25519")
    try:
        public.verify(signature, _signed_text(fields["record"]))
    except InvalidSignature as error:
        raise RecordError("another key made it, or it was changed") from error
    return signer


def _signed_text(record_hash: str) -> bytes:
    return f"{DOMAIN}\n{record_hash}\n".encode("utf-8", "surrogatepass")


def _public_line(private: Ed25519PrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    line = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return line.decode("ascii")


def _is_public(content: bytes) -> bool:
    return content.startswith((b"ssh-", b"ecdsa-"))


@contextmanager
def _cryptography() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise MissingPartError(
            f"signatures need the package cryptography; {WHAT_TO_INSTALL}"
        ) from error

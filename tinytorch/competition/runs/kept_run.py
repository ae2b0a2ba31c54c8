"""A run that was kept: a judgement with where it lies, and how far it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tinytorch.competition.judgement import Judgement

__all__ = ["NOT_CHECKED", "SEED_NOT_REVEALED", "DamagedFile", "KeptRun", "Status"]

Status = Literal["verified", "verified, seed not revealed", "signature not checked", "unverified"]
"""Whether the organiser ran it on a round's questions, and whether others can check that by now.

What is signed is neither verified nor unverified while the signature cannot be checked here.
"""
SEED_NOT_REVEALED: Final = "verified, seed not revealed"
NOT_CHECKED: Final = "signature not checked"


@dataclass(frozen=True)
class KeptRun:
    """A judgement that was read from a record.

    `sha256` is the hash that the record states of itself, `signer` the public key whose signature
    holds ("" for none), `path` where it lies below the folder of submissions.
    """

    judgement: Judgement
    sha256: str
    status: Status = "unverified"
    signer: str = ""
    path: str = ""

    @property
    def is_verified(self) -> bool:
        return self.status in ("verified", SEED_NOT_REVEALED)


@dataclass(frozen=True)
class DamagedFile:
    """A file that lies where a record belongs, and why it is none that counts."""

    path: str
    reason: str

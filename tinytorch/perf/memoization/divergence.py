"""Divergence: where two generations part, and whether that is a matter of rounding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Divergence"]


@dataclass(frozen=True)
class Divergence:
    """The first token in which two generations of one sequence differ.

    `place` counts new tokens from 0. `gap` is by how much the model itself prefers the expected
    token to the one found, in its scores. `noise` is how far these scores move when the model
    computes them in another order: the whole text at once, or token by token with its own cache.
    `strays_at` is the first token after it that the model would not write after the tokens found
    before, however it rounds; None where there is none.
    """

    sequence: int
    place: int
    expected: int
    found: int
    gap: float
    noise: float
    strays_at: int | None = None

    @property
    def is_rounding(self) -> bool:
        """Tell whether the two tokens are closer than the model's own scores are exact.

        What follows must be the model's own text, too.
        """
        return abs(self.gap) <= 2 * self.noise and self.strays_at is None

    def __str__(self) -> str:
        how = (
            "no more than rounding" if self.is_rounding else "more than rounding: a real difference"
        )
        apart = f"their scores are {self.gap:.3g} apart"
        if self.strays_at is not None:
            how = f"new token {self.strays_at} is none that it would write: a real difference"
        return (
            f"sequence {self.sequence} differs from new token {self.place} on "
            f"({self.found} instead of {self.expected}): {apart}, and the model's own scores "
            f"move by {self.noise:.3g} with the order of computing; {how}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {**asdict(self), "is_rounding": self.is_rounding}

"""Sizes as an option of a command."""

from __future__ import annotations

from tinytorch.errors import SettingError

__all__ = ["whole_numbers"]


def whole_numbers(text: str | None) -> tuple[int, ...] | None:
    """Read what was given as --sizes, such as 8,16,32; None where nothing was."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise SettingError(f"--sizes {text!r}; give whole numbers, such as 8,16,32")
    return tuple(int(word) for word in words)

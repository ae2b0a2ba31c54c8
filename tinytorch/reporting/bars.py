"""Bars made of letters."""

from __future__ import annotations

__all__ = ["share_bar"]

EIGHTHS = "▏▎▍▌▋▊▉█"


def share_bar(share: float, width: int) -> str:
    """Draw a share of 1 as a bar, padded to `width`; what is there but tiny is a thin line.

    >>> share_bar(0.5, 4), share_bar(0.0, 4)
    ('██  ', '    ')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest - 1] if rest else "")).ljust(width)

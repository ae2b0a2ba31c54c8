"""Large numbers in the sentences of advice: three digits that count, never a power of ten."""

from __future__ import annotations

__all__ = ["billions", "millions"]


def millions(value: float) -> str:
    """Write how many millions.

    >>> millions(1_320_000_000), millions(437_000)
    ('1,320', '0.437')
    """
    return _scaled(value / 1e6)


def billions(value: float) -> str:
    """Write how many billions.

    >>> billions(201.3e9)
    '201'
    """
    return _scaled(value / 1e9)


def _scaled(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"

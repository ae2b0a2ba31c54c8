"""Numbers with units, short enough for a table: three digits that count, and a prefix.

Prefixes are powers of a thousand, but for sizes in memory: these have KiB and MiB, powers of 1024,
as caches and pages do. What is not known is a dash, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "bytes_text",
    "count_text",
    "factor_text",
    "percent_text",
    "rate_text",
    "seconds_text",
]

UNKNOWN = "-"
PREFIXES = ("", "k", "M", "G", "T", "P", "E")
BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
SMALL_SECONDS = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"))
"""Below the first number, in units of the second."""
MINUTE_S, HOUR_S = 60.0, 3600.0


def seconds_text(seconds: float | None) -> str:
    """Write a time: ``8.50 us``, ``2.69 ms``, ``1.20 s``, ``2 min 5 s``.

    >>> seconds_text(0.00269), seconds_text(None)
    ('2.69 ms', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return _without_digits(seconds)
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for limit, unit, name in SMALL_SECONDS:
        if float(f"{size / unit:.3g}") * unit < limit:
            return f"{_three_digits(seconds / unit)} {name}"
    if size < MINUTE_S:
        return f"{_three_digits(seconds)} s"
    sign, whole = "-" if seconds < 0 else "", round(size)
    if whole < HOUR_S:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600} h {whole % 3600 // 60} min"


def bytes_text(size: float | None) -> str:
    """Write a size in memory: ``512 B``, ``3.09 MiB``."""
    return _scaled(size, " ", "B", base=1024, prefixes=BINARY_PREFIXES)


def count_text(count: float | None) -> str:
    """Write a number of things: ``640``, ``109k``, ``55.1M``.

    >>> count_text(640), count_text(55_123_968)
    ('640', '55.1M')
    """
    return _scaled(count, "", "")


def rate_text(rate: float | None, unit: str = "FLOP/s") -> str:
    """Write something per second: ``41.2 GFLOP/s``, ``48.6 GB/s``."""
    return _scaled(rate, " ", unit)


def percent_text(share: float | None) -> str:
    """Write a share of 1 as a percentage; what is there but tiny is not shown as nothing."""
    if share is None or not math.isfinite(share):
        return _without_digits(share)
    if 0 < abs(share) < 0.0005:
        return "<0.1%" if share > 0 else ">-0.1%"
    return f"{share:.1%}" if abs(share) < 9.995 else f"{share:,.0%}"


def factor_text(factor: float | None) -> str:
    """Write how many times: ``1.25x``."""
    if factor is None or not math.isfinite(factor):
        return _without_digits(factor)
    return f"{factor:.2f}x" if abs(factor) < 99.995 else f"{factor:,.0f}x"


def _scaled(
    number: float | None,
    space: str,
    unit: str,
    *,
    base: int = 1000,
    prefixes: Sequence[str] = PREFIXES,
) -> str:
    if number is None or not math.isfinite(number):
        return _without_digits(number)
    power = 0
    # 999.7 thousand rounds to 1000 thousand, which is better called one million.
    while float(f"{abs(number):.3g}") >= 1000 and power < len(prefixes) - 1:
        number, power = number / base, power + 1
    is_whole = float(number).is_integer() and (power == 0 or base == 1024)
    digits = f"{number:.0f}" if is_whole else _three_digits(number)
    return f"{digits}{space}{prefixes[power]}{unit}".rstrip()


def _three_digits(number: float) -> str:
    """Write three significant digits without an exponent: 8.50, 41.2, 455."""
    size = float(f"{abs(number):.3g}")
    if size == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{number:.{min(decimals, 6)}f}"


def _without_digits(number: float | None) -> str:
    if number is None or math.isnan(number):
        return UNKNOWN
    return "inf" if number > 0 else "-inf"

"""What options of commands hold: shares, seconds, counts, sizes, and what is no such thing."""

import argparse
import math

from tinytorch.errors import SettingError

__all__ = [
    "confidence",
    "margin",
    "number",
    "positive_count",
    "positive_share",
    "seconds",
    "share",
    "variable",
    "whole_numbers",
]


def number(text: str) -> float:
    """Read a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return value


def share(text: str) -> float:
    """Read a share of 1, such as 0.05 or 5%."""
    from tinytorch.records.settings import parse_share

    try:
        return parse_share(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_share(text: str) -> float:
    """Read a share that is more than nothing."""
    if not share(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves nothing; give a share such as 1%")
    return share(text)


def confidence(text: str) -> float:
    """Read a confidence from 50% on."""
    if share(text) < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no confidence; give one such as 95%")
    return share(text)


def margin(text: str) -> float:
    """Read a margin: a share such as 1%, or a number in the unit of the scores."""
    if text.strip().endswith("%"):
        return share(text)
    if number(text) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}; a margin is zero or more")
    return number(text)


def seconds(text: str) -> float:
    """Read a time that is more than nothing."""
    if text.strip().endswith("%") or not number(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds such as 2")
    return number(text)


def positive_count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 on, not {text!r}")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} sets nothing; write NAME=VALUE")
    return name, value


def whole_numbers(text: str | None) -> tuple[int, ...] | None:
    """Read what was given as --sizes, such as 8,16,32; None where nothing was."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise SettingError(f"--sizes {text!r}; give whole numbers, such as 8,16,32")
    return tuple(int(word) for word in words)

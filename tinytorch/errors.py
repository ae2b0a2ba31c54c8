"""The tree of exceptions, and what results say about themselves: Note and Failure.

Every error derives from :class:`TinyTorchError` and from the built-in that a Python reader would
expect, so both ``except TinyTorchError`` and ``except ValueError`` work. A message says what was
seen and what to do next.

Programs branch on the code of a note or a failure, never on its words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Self


class TinyTorchError(Exception):
    """Anything that TinyTorch raises on purpose.

    ``where`` is the path of the layer that raised, filled in while the error passes through the
    modules of a model, and shown before the message. ``subject`` is the name of what the error is
    about, such as a side of a comparison; the message names it, too.
    """

    where: str = ""
    subject: str = ""

    def about(self, subject: str) -> Self:
        """Return the error itself, with its subject."""
        self.subject = subject
        return self

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.where}: {message}" if self.where else message


class ShapeError(TinyTorchError, ValueError):
    """Shapes that do not fit together."""


class DTypeError(TinyTorchError, TypeError):
    """A dtype that the operation cannot work with."""


class SettingError(TinyTorchError, ValueError):
    """A setting (argument, configuration) outside of what is possible."""


class GraphError(TinyTorchError, RuntimeError):
    """A backward pass that cannot run: no graph, freed graph, no scalar."""


class DivergenceError(TinyTorchError, ArithmeticError):
    """Training that has left the finite numbers."""


class TokenError(TinyTorchError, ValueError, IndexError):
    """A token id that is not a whole number or lies outside of the vocabulary."""


class CacheFullError(TinyTorchError, ValueError):
    """A key-value cache without room for the next tokens."""


class CheckpointError(TinyTorchError, ValueError):
    """A checkpoint that cannot be read or does not fit the model."""


class BackendError(TinyTorchError, ValueError):
    """A backend that is unknown or does not have the operation."""


class TargetError(TinyTorchError, ValueError):
    """A target (``mlp``, ``file.py:factory``, ``module:factory``) that gives no workload."""


class ModelError(TinyTorchError, RuntimeError):
    """A model that raised, or gave what cannot be worked with; the message names the layer."""


class MeasurementError(TinyTorchError, RuntimeError):
    """A measurement that cannot be trusted or did not end; it gives no verdict."""


class RecordError(TinyTorchError, RuntimeError):
    """A record that cannot be read, or a store of records that cannot be read or written."""


class MissingPartError(TinyTorchError, ImportError):
    """An optional part that is not installed; the message names the extra to install."""


@dataclass(frozen=True)
class Note:
    """What a reader of a result should know.

    `code` is a short constant for programs (``training-mode``); `subject` is what the note is about
    (``baseline``, ``candidate``, the path of a layer, the name of a setting) or empty; `words` are
    for people. A note of a record from before there were codes has an empty code.
    """

    words: str
    code: str = ""
    subject: str = ""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Failure(Note):
    """Why something was not done or not measured, with the same fields."""


def first_line(error: BaseException, *, with_class: bool = True) -> str:
    """Return the first line of the message, after the class unless told otherwise."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not text or not with_class:
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}"


def short_text(error: BaseException) -> str:
    """Return the first line of the message, after the class unless the error is one of ours."""
    return first_line(error, with_class=not isinstance(error, TinyTorchError))


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> None:
    """Raise SettingError unless a setting is a finite number within limits.

    >>> check_number("share", 1.5, above=0, most=1)
    Traceback (most recent call last):
    ...
    tinytorch.errors.SettingError: share=1.5; it must be a number above 0, at most 1
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and above < value < below and least <= value <= most:  # type: ignore[operator]
        return
    limits = {"above": above, "at least": least, "below": below, "at most": most}
    words = ", ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    raise SettingError(f"{name}={value!r}; it must be a number {words}".rstrip())


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return what to write instead of an unknown word: the nearest known one, or all of them.

    >>> did_you_mean("mpl", ["mlp", "cnn"]), did_you_mean("x", ["mlp", "cnn"])
    ("did you mean 'mlp'?", 'there are mlp, cnn')
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"

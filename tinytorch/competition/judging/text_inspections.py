"""What a judge looks for in texts: are they written and read by a model that computes?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.estimates import signed_rank_interval
from tinytorch.competition.judging.courses import Purpose
from tinytorch.competition.judging.heats import Given, Leg, Written
from tinytorch.competition.judging.measuring import charge_s
from tinytorch.competition.judging.seen import KEPT_GAIN, TICK_S, Seen
from tinytorch.competition.questions import PROMPT
from tinytorch.competition.rules import Finding, finding

__all__ = ["LIKELY", "check_letters", "check_memory_of_book"]

LIKELY = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2, "int8": 0.2, "int4": 0.5}
"""Declared precision -> by how many standard deviations of its outputs a written character may be
less likely than the most likely one: reading at once and letter by letter round differently.
Measured with our own techniques, on 18 texts that the reference read: with float32 none differs,
with int8 none by more than 0.1, with int4 0.1% of the characters by more than 0.2."""
STRAYS_ALLOWED = 0.02
PURPOSES_OF_READING: tuple[Purpose, Purpose] = ("timed", "probe")
KNOWN_NATS = 1.0
"""A better model than the reference finds the book likelier and what the reference drew unlikelier,
by some tenths; one that looks up is certain of the book."""
UNLIKELY = 0.5
"""By so many nats per character a text may be less likely than what people wrote."""


def check_letters(seen: Seen) -> Iterator[Finding]:
    """A5: each written character is the most likely one, as whoever reads the text finds.

    The contender reads what it wrote, and in closed, where the model is the same, the reference
    does: a contender may know its own texts again, and say of them what it likes. In the other
    divisions the reference finds them at least as likely as texts that people wrote.
    """
    written = [text for leg in seen.entries for text in leg.texts]
    if not written:
        return
    allowed = LIKELY[seen.entry.precision]
    readings = {"itself": [_is_stray(each.text, each.by_writer, allowed) for each in written]}
    if seen.entry.division == "closed":
        readings["the reference"] = [
            _is_stray(each.text, each.by_first, allowed) for each in written
        ]
    for reader, strays in readings.items():
        share = float(np.mean(np.concatenate(strays)))
        if share > STRAYS_ALLOWED:
            seen_share = f"{share:.0%} of the written characters are not the most likely ones"
            yield finding("A5", f"{seen_share}, as {reader} reads them")
            return
    found, people = float(np.mean([_likelihood(each) for each in written])), seen.accuracy
    if people is not None and found < people.baseline_mean - UNLIKELY:
        yield finding(
            "A5",
            f"to the reference, its texts have {found:.2f} nats per character; texts of people "
            f"have {people.baseline_mean:.2f}",
        )


def check_memory_of_book(seen: Seen) -> Iterator[Finding]:
    """A6: texts that are in no book are read as well as those of the book, and take as long."""
    if not seen.entries[0].of("probe"):
        return
    logs = [
        math.log(_book_ratio(entry, reference) / _book_ratio(reference, reference))
        for reference, entry in seen.legs
    ]
    _, high = signed_rank_interval(logs, 0.05)
    if high < math.log(KEPT_GAIN):
        share = math.exp(float(np.median(logs)))
        yield finding("A6", f"texts of the book took {share:.0%} of the time of new texts")
        return
    known = float(np.mean([_book_nats(entry) - _book_nats(ours) for ours, entry in seen.legs]))
    if known > KNOWN_NATS:
        yield finding(
            "A6",
            f"texts of the book are likelier to it than new ones, by {known:.2f} nats per "
            "character more than to the reference",
        )


def _book_ratio(leg: Leg, reference: Leg) -> float:
    """Give the time of texts of the book over that of new ones, by the judge's clock."""
    book, new = (
        float(np.median(leg.inner_s(purpose) + charge_s(leg, reference, purpose)))
        for purpose in PURPOSES_OF_READING
    )
    return max(TICK_S, book) / max(TICK_S, new)


def _book_nats(leg: Leg) -> float:
    """Give by how much texts of the book are likelier to a contender than new ones."""
    book, new = (
        float(np.mean([_read_nats(each) for each in leg.of(purpose)]))
        for purpose in PURPOSES_OF_READING
    )
    return book - new


def _read_nats(given: Given) -> float:
    return _nats(given.answer.output[0, :-1], given.ask.question[0, 1:])


def _nats(outputs: npt.NDArray[Any], characters: npt.NDArray[Any]) -> float:
    """Give the mean logarithm of what outputs (time, vocabulary) give to characters (time,)."""
    below = outputs.astype(np.float64)
    below -= below.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(below, characters[:, None].astype(np.int64), axis=1)[:, 0]
    return float(np.mean(chosen - np.log(np.exp(below).sum(axis=1))))


def _likelihood(written: Written) -> float:
    """Give the mean logarithm of what the reference gives to each written character."""
    return _nats(written.by_first[0, PROMPT - 1 : -1], written.text[PROMPT:])


def _is_stray(
    text: npt.NDArray[Any], outputs: npt.NDArray[Any], allowed: float
) -> npt.NDArray[np.bool_]:
    before = outputs[0, PROMPT - 1 : -1].astype(np.float64)  # (written, vocabulary)
    chosen = np.take_along_axis(before, text[PROMPT:, None].astype(np.int64), axis=1)[:, 0]
    missing: npt.NDArray[np.bool_] = before.max(axis=1) - chosen > allowed * before.std()
    return missing

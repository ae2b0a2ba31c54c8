"""Inspections: what a judge checks in the answers of an entry, and in how they came about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.competition import heats
from tinytorch.competition.events import KEPT, PROMPT, Event, tier_verdict
from tinytorch.competition.rules import Finding, finding
from tinytorch.competition.sandbox.contender import BACKEND
from tinytorch.core.dispatch import use_backend
from tinytorch.measure.ceilings_cpu import best_matrix_rate
from tinytorch.measure.interleaving import signed_rank_interval
from tinytorch.models.zoo import load_zoo
from tinytorch.profiling.flops import count_flops

# ---------------------------------------------------------------- what a judge checks in texts:
# are they written and read by a model that computes?

LIKELY = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2, "int8": 0.2, "int4": 0.5}
"""Declared precision -> by how many standard deviations of its outputs a written character may be
less likely than the most likely one: reading at once and letter by letter round differently.
Measured with our own techniques, on 18 texts that the reference read: with float32 none differs,
with int8 none by more than 0.1, with int4 0.1% of the characters by more than 0.2."""
STRAYS_ALLOWED = 0.02
PURPOSES_OF_READING: tuple[heats.Purpose, heats.Purpose] = ("timed", "probe")
KNOWN_NATS = 1.0
"""A better model than the reference finds the book likelier and what the reference drew unlikelier,
by some tenths; one that looks up is certain of the book."""
UNLIKELY = 0.5
"""Nats per character by which a generated text may be less likely than human text."""


def check_letters(seen: heats.Seen) -> Iterator[Finding]:
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


def check_memory_of_book(seen: heats.Seen) -> Iterator[Finding]:
    """A6: texts that are in no book are read as well as those of the book, and take as long."""
    if not seen.entries[0].of("probe"):
        return
    logs = [
        math.log(_book_ratio(entry, reference) / _book_ratio(reference, reference))
        for reference, entry in seen.legs
    ]
    _, high = signed_rank_interval(logs, 0.05)
    if high < math.log(heats.KEPT_GAIN):
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


def _book_ratio(leg: heats.Leg, reference: heats.Leg) -> float:
    """Return the time for texts of the book over the time for new ones, by the judge's clock."""
    book, new = (
        float(np.median(leg.inner_s(purpose) + heats.charge_s(leg, reference, purpose)))
        for purpose in PURPOSES_OF_READING
    )
    return max(heats.TICK_S, book) / max(heats.TICK_S, new)


def _book_nats(leg: heats.Leg) -> float:
    """Return the mean log-likelihood of texts of the book minus that of new ones."""
    book, new = (
        float(np.mean([_read_nats(each) for each in leg.of(purpose)]))
        for purpose in PURPOSES_OF_READING
    )
    return book - new


def _read_nats(given: heats.Given) -> float:
    return _nats(given.answer.output[0, :-1], given.ask.question[0, 1:])


def _nats(outputs: npt.NDArray[Any], characters: npt.NDArray[Any]) -> float:
    """Return the mean log-likelihood of characters (time,) under outputs (time, vocabulary)."""
    below = outputs.astype(np.float64)
    below -= below.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(below, characters[:, None].astype(np.int64), axis=1)[:, 0]
    return float(np.mean(chosen - np.log(np.exp(below).sum(axis=1))))


def _likelihood(written: heats.Written) -> float:
    """Return the mean log-likelihood of the generated characters under the reference."""
    return _nats(written.by_first[0, PROMPT - 1 : -1], written.text[PROMPT:])


def _is_stray(
    text: npt.NDArray[Any], outputs: npt.NDArray[Any], allowed: float
) -> npt.NDArray[np.bool_]:
    before = outputs[0, PROMPT - 1 : -1].astype(np.float64)  # (written, vocabulary)
    chosen = np.take_along_axis(before, text[PROMPT:, None].astype(np.int64), axis=1)[:, 0]
    missing: npt.NDArray[np.bool_] = before.max(axis=1) - chosen > allowed * before.std()
    return missing


# ---------------------------------------------------------------- the time below which no honest
# answer can be given on this machine

SIZES = (64, 256, 512, 1024)
"""The smallest runs on one thread: where others use the machine, threads of a product wait for each
other, and the larger ones show a hundredth of the rate."""
BUDGET_S = 0.5
FASTER_PRODUCTS = 8
"""Products of 8-bit numbers run at most at four times the rate of 32-bit ones, and the clock of a
processor may have been half as fast while its rate was measured."""


def floor_s(event: Event) -> float:
    """Return the lower bound of the seconds of one request, at the machine's peak FLOP/s."""
    workload = load_zoo(event.model)
    inputs = [np.repeat(each.data, event.batch, axis=0) for each in workload.inputs]
    with use_backend(BACKEND):  # another one might first have to be compiled
        flops = count_flops(workload.model, *(type(workload.inputs[0])(each) for each in inputs))
    return flops / (FASTER_PRODUCTS * _best_rate())


@lru_cache(maxsize=1)
def _best_rate() -> float:
    rng = np.random.default_rng(0)

    def product_at(size: int) -> Callable[[], object]:
        left, right = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        return lambda: left @ right

    rates = best_matrix_rate("float32", product_at, sizes=SIZES, budget_s=BUDGET_S)
    return max(rates.values)


# ---------------------------------------------------------------- what a judge checks in the
# answers of an entry, and in how they came about

TOLERANCES = {"float32": 3e-5, "float16": 5e-3, "bfloat16": 3e-2, "int8": 0.05, "int4": 0.2}
"""Declared precision -> how far outputs may be from the reference's, relative in the norm.

About three times the worst of our own techniques, measured on 3,000 digits and 600 texts (sprint,
marathon, decathlon): int8-dynamic 0.0067, 0.0054, 0.013; int8-static 0.0098, 0.0045, 0.016;
int8-weights 0.0033, 0.0037, 0.0082; int4-weights 0.052, 0.038, 0.068. Fused layers and compiled
kernels differ by less than 5e-6. Weights alone in float16 differ by 1.05e-4, 1.06e-4, 2.8e-4, which
float32 has to exclude; in bfloat16 by 9e-4, 9e-4, 2.2e-3, and products in them by more.
"""
LARGEST = 1e30
"""A larger output means nothing, and its square is beyond all numbers."""
SAME = 1e-6
READING: tuple[heats.Purpose, ...] = ("timed", "again", "short", "probe")
CLOCK_SHARE, CLOCK_S, HIDING_CALLS = 0.25, 20e-6, 75
BUSY_SHARE = 0.1
OTHER_FRAMEWORKS = frozenset(
    {"torch", "tensorflow", "jax", "onnxruntime", "mxnet", "tvm", "cupy", "openvino"}
)


def inspect(seen: heats.Seen) -> tuple[Finding, ...]:
    """Return all findings; where an answer has the wrong shape or dtype, only that one."""
    unusable = next(_shapes(seen), None)
    if unusable is not None:
        return (unusable,)
    return tuple(each for look in INSPECTIONS for each in look(seen))


# ---------------------------------------------------------------- answers


def _shapes(seen: heats.Seen) -> Iterator[Finding]:
    """A1: as many finite numbers as the reference gives, in every answer."""
    for reference, entry in seen.legs:
        for expected, found in zip(reference.given, entry.given, strict=True):
            if found.ask.purpose == "write":
                if not heats.is_written_text(found.answer):
                    yield finding("A1", "a text is no list of characters of the alphabet")
                    return
                continue
            theirs, ours = found.answer.output, expected.answer.output
            if theirs.shape != ours.shape:
                yield finding("A1", f"an answer of shape {theirs.shape}, expected {ours.shape}")
                return
            yield from _strange(theirs)
        for written in entry.texts:
            if written.by_writer.shape != written.by_first.shape:
                yield finding("A1", f"an answer of shape {written.by_writer.shape} to a text")
                return
            yield from _strange(written.by_writer)


def _strange(output: npt.NDArray[Any]) -> Iterator[Finding]:
    if output.dtype.kind not in "fiu":
        yield finding("A1", f"an answer is {output.dtype.name}, expected real numbers")
        return
    is_usual = np.abs(output.astype(np.float64)) < LARGEST  # not so where it is NaN
    if not is_usual.all():
        yield finding("A1", f"an answer holds {output[~is_usual].reshape(-1)[0]}")


def _accuracy(seen: heats.Seen) -> Iterator[Finding]:
    """A2: the tier, by paired non-inferiority on the timed answers."""
    found = seen.accuracy
    if found is None or tier_verdict(found) == KEPT:
        return
    became = f"{found.metric} {found.baseline_mean:.4f} became {found.candidate_mean:.4f}"
    more = f"; {found.remedy}" if found.remedy else ""
    yield finding("A2", f"{became}: {found.verdict}, {found.evidence}{more}")


def _constant(seen: heats.Seen) -> Iterator[Finding]:
    """A3: answers differ where the reference's do."""
    for reference, entry in seen.legs:
        usual, spread = (
            float(np.std(leg.outputs, axis=0, dtype=np.float64).max()) for leg in (reference, entry)
        )
        if spread <= SAME * usual:
            yield finding("A3", f"all {len(entry.outputs)} answers of a heat are the same")
            return


def _precision(seen: heats.Seen) -> Iterator[Finding]:
    """A4: outputs as near to the reference's as the declared precision, whatever is read.

    Weights cannot be seen from outside: a change below the tolerance stays hidden. Measured:
    of the smallest weights set to zero, float32 shows 2% in all events. Below int8 a tenth stays
    hidden (0.020, 0.017 and 0.024 away), in the sprint and the marathon a fifth (0.045, 0.047; the
    decathlon: 0.099); below int4 three tenths (0.096, 0.095, 0.17). Half shows everywhere (0.27,
    0.28, 0.32).
    """
    if seen.entry.division != "closed":
        return
    worst = max(
        _distance(reference, entry, purpose)
        for reference, entry in seen.legs
        for purpose in READING
        if reference.of(purpose)
    )
    allowed = TOLERANCES[seen.entry.precision]
    if worst > allowed:
        yield finding(
            "A4",
            f"answers are {worst:.2g} away from the reference's, relative in the norm; with "
            f"{seen.entry.precision} and the same weights it is at most {allowed:.2g}",
        )


def _distance(reference: heats.Leg, entry: heats.Leg, purpose: heats.Purpose) -> float:
    expected, found = (
        np.concatenate([each.answer.output for each in leg.of(purpose)]).astype(np.float64)
        for leg in (reference, entry)
    )
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# ---------------------------------------------------------------- how they came about


def _clocks(seen: heats.Seen) -> Iterator[Finding]:
    """T1: the contender's account of its time agrees with the judge's clock.

    What it hides is charged in any case. It is called a cheat where it shows in all heats and in a
    quarter of the calls: disturbances of a busy machine meet fewer.
    """
    if seen.entry.code is None:
        return
    purposes: dict[heats.Purpose, None] = dict.fromkeys(
        g.ask.purpose for g in seen.entries[0].given
    )
    for purpose in purposes:
        hidden = [
            float(np.percentile(heats.charge_s(entry, reference, purpose), HIDING_CALLS))
            for reference, entry in seen.legs
        ]
        told = [float(np.median(entry.inner_s(purpose))) for entry in seen.entries]
        typical_s, told_s = float(np.median(hidden)), float(np.median(told))
        least_s, _ = signed_rank_interval(hidden, 0.05)
        if least_s > max(CLOCK_S, CLOCK_SHARE * told_s):
            yield finding(
                "T1",
                f"a call took {1e6 * (told_s + typical_s):.3g} us by the judge's clock, of which "
                f"the entry's own account shows {1e6 * told_s:.3g} us",
            )
            return


def _floor(seen: heats.Seen) -> Iterator[Finding]:
    """T2: nothing is faster than the machine."""
    ours, theirs = (
        min(float(np.median(legs[side].inner_s("timed"))) for legs in seen.legs) for side in (0, 1)
    )
    # Where others used the machine, its best rate was not seen; the reference shows a part of it.
    floor_s = min(seen.floor_s, ours / FASTER_PRODUCTS)
    if theirs < floor_s:
        yield finding(
            "T2",
            f"an answer took {1e6 * theirs:.3g} us; the multiplications alone take at least "
            f"{1e6 * floor_s:.3g} us at this machine's best rate",
        )


def _kept_answers(seen: heats.Seen) -> Iterator[Finding]:
    """T3: a question that was asked before takes as long as the first time."""
    if seen.entry.division == "open":
        return
    logs = [
        math.log(_again_ratio(entry) / _again_ratio(reference)) for reference, entry in seen.legs
    ]
    _, high = signed_rank_interval(logs, 0.05)
    if high < math.log(heats.KEPT_GAIN):
        share = math.exp(float(np.median(logs)))
        yield finding(
            "T3", f"questions that were asked before took {share:.0%} of the time of new ones"
        )


def _again_ratio(leg: heats.Leg) -> float:
    """Return the median ratio of the time of repeated questions to their first time."""
    first = {each.ask.index: max(heats.TICK_S, each.answer.inner_s) for each in leg.of("timed")}
    ratios = [
        max(heats.TICK_S, each.answer.inner_s) / first[each.ask.index] for each in leg.of("again")
    ]
    return float(np.median(ratios))


def _late_work(seen: heats.Seen) -> Iterator[Finding]:
    """T4: nothing goes on when nothing is asked."""
    ours, theirs = (
        float(np.median([legs[side].idle_cpu_s for legs in seen.legs])) / heats.PAUSE_S
        for side in (0, 1)
    )
    if theirs > BUSY_SHARE and ours < BUSY_SHARE / 2:
        yield finding(
            "T4", f"the processor was {theirs:.0%} busy with the entry while it had no question"
        )


def _questions(seen: heats.Seen) -> Iterator[Finding]:
    """T5: questions are as they were."""
    changed = sum(not each.answer.is_question_intact for leg in seen.entries for each in leg.given)
    if changed:
        yield finding("T5", f"{changed} questions were changed while they were answered")


def _company(seen: heats.Seen) -> Iterator[Finding]:
    """T6 and E7: no further processes; for learners no other framework."""
    processes = max(leg.usage.processes for leg in seen.entries)
    if processes > 1:
        yield finding("T6", f"the entry ran in {processes} processes; one is allowed")
    if seen.entry.division != "learner":
        return
    loaded = {name for leg in seen.entries for name in leg.usage.modules} & OTHER_FRAMEWORKS
    if loaded:
        yield finding("E7", f"the entry loaded {', '.join(sorted(loaded))}")


INSPECTIONS: tuple[Callable[[heats.Seen], Iterator[Finding]], ...] = (
    _accuracy,
    _constant,
    _precision,
    check_letters,
    check_memory_of_book,
    _clocks,
    _floor,
    _kept_answers,
    _late_work,
    _questions,
    _company,
)

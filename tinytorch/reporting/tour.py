"""Documents of the tour: its chapters for a terminal, and all of it for a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.comparison import accuracy_line, measured_rows
from tinytorch.reporting.document import (
    Banner,
    Block,
    Bullets,
    Code,
    Column,
    Document,
    Facts,
    Item,
    Paragraph,
    Picture,
    Pictures,
    Preformatted,
    Section,
    Strong,
    Table,
    Tone,
)
from tinytorch.reporting.html.flame import FlameGraph
from tinytorch.reporting.optimization import INTERRUPTED, optimization_document
from tinytorch.reporting.optimization_words import (
    AIMS,
    attempt_phrases,
    counted_outcomes,
    every_note,
    verdict_word,
)
from tinytorch.reporting.quantities import rate_text, seconds_text
from tinytorch.tuning.attempt import is_less
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.tour import Introduction, SampleDigit, Tour, Visit

__all__ = [
    "FAST",
    "NEXT_COMMANDS",
    "ending_document",
    "introduction_document",
    "short_line",
    "tour_document",
    "visit_document",
]

TITLE = "A tour of TinyTorch"
INK = 1.2
"""Pixels brighter than this are drawn. Inputs are centred; this is a grey value of about 0.5."""
FAST = 'pip install ".[fast]"'
NEXT_COMMANDS = (
    ("tinytorch optimize yours.py:make --html report.html", "all of this, on your model"),
    ("tinytorch profile yours.py:make", "where its time and memory go"),
    ("tinytorch compare old.py:make new.py:make", "is the new one faster, with equal accuracy?"),
)
"""What to type with a model of one's own, and what it answers."""
STORY = ("confirmation", "why", "advice", "next", "speedups", "attempts", "unused", "parts")
"""Sections of an optimization that its chapter tells, in this order; the page has all of them."""
SAMPLE = (
    "Trained models were profiled; what could make them better was tried on copies, checked for "
    "accuracy, and timed in turns with the baselines."
)


def tour_document(tour: Tour) -> Document:
    """Return the whole tour: the models, everything about one after the other, what is next."""
    visits = [section for visit in tour.visits for section in _about(visit)]
    notes = [
        f"{visit.stop.target}: {note}"
        for visit in tour.visits
        for note in every_note(visit.optimization)
    ]
    return Document(
        TITLE,
        _banner(tour),
        [_models(tour.introduction), *_once(visits), _next(tour)],
        notes,
        tour.visits[0].optimization.environment if tour.visits else None,
        tour.to_dict(),
        "tinytorch-tour.json",
        _where(tour),
    )


def _banner(tour: Tour) -> Banner:
    helped = [each for each in tour.visits if each.optimization.recommended]
    words = [f"{x.stop.target} {verdict_word(x.optimization)}" for x in helped]
    sentence = f"{SAMPLE} {INTERRUPTED}" if tour.was_interrupted else SAMPLE
    facts = tuple((each.stop.target, short_line(each.optimization)) for each in tour.visits)
    if not helped:
        return Banner("Nothing that was tried helps", sentence, facts)
    return Banner(", ".join(words), sentence, facts, "good")


def short_line(found: Optimization) -> str:
    """Return what came of a model: ``1.63x faster (1.56x to 1.70x) by int8-dynamic``."""
    best, goal = found.recommended, found.settings.goal
    if best is None or best.comparison is None:
        return f"nothing that was tried is shown to make it {AIMS[goal]}"
    first, *others = attempt_phrases(best, goal)
    return ", ".join([f"{first} by {best.name}", *others])


def _where(tour: Tour) -> str:
    """Return what all of it took, and on what it ran."""
    attempts = counted_outcomes(tour.attempts) if tour.attempts else "no attempts"
    environment = tour.visits[0].optimization.environment if tour.visits else {}
    cores = environment.get("usable_cores")
    on = "" if cores is None else f" on {cores} core{'s' if cores != 1 else ''}"
    return f"{attempts}; {seconds_text(tour.seconds)}{on}, backend {tour.backend}"


# ---------------------------------------------------------------- the models


def introduction_document(introduction: Introduction) -> Document:
    """Return what the models do: digits and the CNN's answers, and a text of the GPT."""
    return Document(TITLE, blocks=(_models(introduction),))


def _models(introduction: Introduction) -> Section:
    text = Paragraph((Strong(introduction.prompt.strip()), f" {introduction.text.strip()}..."))
    blocks = (
        Pictures(
            [_digit(each) for each in introduction.digits],
            title="cnn reads digits that were held out from training.",
        ),
        Paragraph("gpt continues the words in bold, one character at a time:", "faint"),
        text,
    )
    return Section("models", "Two trained models of the zoo", blocks)


def _digit(digit: SampleDigit) -> Picture:
    words = f"a {digit.predicted} ({digit.probability:.0%})"
    if digit.predicted == digit.label:
        return Picture(digit.image > INK, words)
    return Picture(digit.image > INK, f"{words}, is a {digit.label}", "bad")


# ---------------------------------------------------------------- one model


def visit_document(place: int, visit: Visit) -> Document:
    """Return the chapter of a model: what was found, why it is slow, what was tried, the proof.

    Notes and everything else are in the whole tour.
    """
    found, stop = visit.optimization, visit.stop
    whole = optimization_document(found)
    assert whole.banner is not None
    sections = {each.anchor: each for each in whole.blocks if isinstance(each, Section)}
    banner = replace(whole.banner, verdict=f"{place}. {stop.target}: {whole.banner.verdict}")
    return Document(
        f"Can {stop.target} be made {AIMS[stop.goal]}? It {stop.about}.",
        banner,
        [*_result(found), *(sections[each] for each in STORY if each in sections)],
    )


def _result(found: Optimization) -> Iterator[Block]:
    """Yield the recommended model beside the baseline; without one, what is smaller."""
    if found.profile is not None:
        rate = find_facts(found.profile).flops_per_s
        achieved = f", {rate_text(rate)}" if rate else ""
        latency = seconds_text(found.profile.latency.median)
        yield Paragraph(f"Baseline: latency {latency}{achieved}.")
    best = found.recommended
    if best is None or best.comparison is None:
        yield from (Paragraph(f"Not faster, but smaller: {each}.") for each in _smaller(found))
        return
    columns = [
        Column("what"),
        Column("baseline", "number"),
        Column("candidate", "number"),
        Column("candidate / baseline", "number"),
    ]
    yield Table(columns, list(measured_rows(best.comparison)), is_sortable=False)
    if best.comparison.accuracy is not None:
        yield Paragraph(accuracy_line(best.comparison.accuracy))


def _smaller(found: Optimization) -> Iterator[str]:
    """Yield what is smallest, if anything is smaller with equal accuracy."""
    sizes = [
        (size.value, each)
        for each in found.attempts
        if each.is_acceptable and (size := each.measured.size) is not None and is_less(size)
    ]
    if sizes:
        smallest = min(sizes, key=lambda pair: pair[0])[1]
        yield f"{smallest.name} is {', '.join(attempt_phrases(smallest, 'size'))}"


def _about(visit: Visit) -> Iterator[Section]:
    """Yield the sections of one model, named after it."""
    found, name = visit.optimization, visit.stop.target
    whole = optimization_document(found)
    assert whole.banner is not None
    result = [Paragraph(whole.banner.sentence), Facts(whole.banner.facts), *_result(found)]
    yield Section(name, f"{name}: {whole.banner.verdict}", result, f"It {visit.stop.about}.")
    for each in whole.blocks:
        if isinstance(each, Section):
            yield replace(each, anchor=f"{name}-{each.anchor}", title=f"{name}: {each.title}")


def _once(sections: list[Section]) -> Iterator[Section]:
    """Leave out the flame graphs after the first: their script works on one picture."""
    has_flame = False
    for each in sections:
        is_flame = any(isinstance(block, FlameGraph) for block in each.blocks)
        if not (is_flame and has_flame):
            yield each
        has_flame = has_flame or is_flame


# ---------------------------------------------------------------- the end


def ending_document(tour: Tour) -> Document:
    """Return what came of each model, and how to go on."""
    tone: Tone = "good" if any(x.optimization.recommended for x in tour.visits) else "unknown"
    lines = [(each.stop.target, short_line(each.optimization)) for each in tour.visits]
    banner = Banner("Summary", INTERRUPTED if tour.was_interrupted else "", tone=tone)
    return Document(_where(tour), banner, (Facts(lines), _next(tour)))


def _next(tour: Tour) -> Section:
    shown = "\n".join(f"$ {command}\n    {about}" for command, about in NEXT_COMMANDS)
    blocks: list[Block] = [Preformatted(shown)]
    if not tour.has_compiled_kernels:
        fast = ("This was NumPy alone. Compiled kernels, also for 8-bit integers: ", Code(FAST))
        blocks.append(Bullets([Item(fast, ("what they bring here was not measured",))]))
    return Section("next", "With your own model", blocks)

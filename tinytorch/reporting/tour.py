"""Documents of the tour: its chapters for a terminal, and all of it for a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting import document as doc
from tinytorch.reporting.comparison import TONES, accuracy_line, measured_rows, speedup_text
from tinytorch.reporting.html.flame import FlameGraph
from tinytorch.reporting.optimization import INTERRUPTED, optimization_document
from tinytorch.reporting.optimization_words import (
    AIMS,
    FAST,
    attempt_phrases,
    counted_outcomes,
    every_note,
    speed_text,
    verdict_word,
)
from tinytorch.reporting.quantities import (
    count_text,
    percent_text,
    rate_text,
    ratio_text,
    seconds_text,
)
from tinytorch.tuning.attempt import is_less
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.tour import Introduction, SampleDigit, Tour, Visit, Writing

TITLE = "A tour of TinyTorch"
INK = 1.2
"""Pixels brighter than this are drawn. Inputs are centred; this is a grey value of about 0.5."""
NEXT_COMMANDS = (
    ("tinytorch optimize yours.py:make --html report.html", "all of this, on your model"),
    ("tinytorch profile yours.py:make", "where its time and memory go"),
    ("tinytorch compare old.py:make new.py:make", "is the new one faster, with equal accuracy?"),
)
"""What to type with a model of one's own, and what it answers."""
STORY = ("confirmation", "why", "advice", "next", "attempts", "unused", "parts")
"""Sections of an optimization that its chapter tells, in this order; the page has all of them."""
SAMPLE = (
    "What could make trained models better was tried on copies, checked for the same text or "
    "accuracy, and timed in turns with the baselines."
)


def tour_document(tour: Tour) -> doc.Document:
    """Return the whole tour: the models, everything about one after the other, what is next."""
    visits = [section for visit in tour.visits for section in _about(visit)]
    notes = [
        f"{visit.stop.target}: {note}"
        for visit in tour.visits
        for note in every_note(visit.optimization)
    ]
    return doc.Document(
        TITLE,
        _banner(tour),
        [_models(tour.introduction), *_writing(tour), *_once(visits), _next(tour)],
        notes,
        tour.visits[0].optimization.environment if tour.visits else None,
        tour.to_dict(),
        "tinytorch-tour.json",
        _where(tour),
    )


def _banner(tour: Tour) -> doc.Banner:
    """Return the headline: what every part of the tour came to."""
    words = [_writing_words(tour.writing)] if tour.writing else []
    words += [_visit_words(each) for each in tour.visits]
    best = _fastest_exact(tour.writing) or (tour.writing and tour.writing.int8)
    facts = [("gpt", _gain_text(best))] if best else []
    facts += [(each.stop.target, short_line(each.optimization)) for each in tour.visits]
    sentence = f"{SAMPLE} {INTERRUPTED}" if tour.was_interrupted else SAMPLE
    is_good = any(x.optimization.recommended for x in tour.visits) or bool(tour.writing)
    return doc.Banner("; ".join(words), sentence, tuple(facts), "good" if is_good else "neutral")


def _visit_words(visit: Visit) -> str:
    """Return what a visit came to in a few words: ``cnn 1.08x faster``."""
    found, name = visit.optimization, visit.stop.target
    tried = next((each for each in found.ranked if each.comparison), None)
    if found.recommended is not None or tried is None or tried.outcome == INCONCLUSIVE:
        return f"{name} {verdict_word(found).lower()}"
    return f"{tried.name} does not pay on {name} ({speed_text(tried)})"


def short_line(found: Optimization) -> str:
    """Return what came of a model: ``1.63x faster (1.56x to 1.70x) by int8-dynamic``."""
    best, goal = found.recommended, found.settings.goal
    if best is None or best.comparison is None:
        tried = found.ranked[:1]
        words = [f"{each.name}: {attempt_phrases(each, goal)[0]}" for each in tried]
        return "; ".join([f"nothing makes it {AIMS[goal]}", *words])
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


def introduction_document(introduction: Introduction) -> doc.Document:
    """Return what the models do: digits and the CNN's answers, and a text of the GPT."""
    return doc.Document(TITLE, blocks=(_models(introduction),))


def _models(introduction: Introduction) -> doc.Section:
    text = doc.Paragraph(
        (doc.Strong(introduction.prompt.strip()), f" {introduction.text.strip()}...")
    )
    blocks = (
        doc.Pictures(
            [_digit(each) for each in introduction.digits],
            title="cnn reads digits that were held out from training.",
        ),
        doc.Paragraph("gpt continues the words in bold, one character at a time:", "faint"),
        text,
    )
    return doc.Section("models", "Two trained models of the zoo", blocks)


def _digit(digit: SampleDigit) -> doc.Picture:
    words = f"a {digit.predicted} ({digit.probability:.0%})"
    if digit.predicted == digit.label:
        return doc.Picture(digit.image > INK, words)
    return doc.Picture(digit.image > INK, f"{words}, is a {digit.label}", "bad")


# ---------------------------------------------------------------- how the GPT writes


def writing_document(place: int, writing: Writing) -> doc.Document:
    """Return how many tokens per second the GPT writes in each way, and whether it is the same."""
    banner = doc.Banner(
        f"{place}. {_writing_words(writing)}",
        "A token is a character; each way continues the same prompt, and its text is compared.",
        tone="good",
    )
    return doc.Document("", banner, (_writing_table(writing), _written_text(writing)))


def _writing(tour: Tour) -> Iterator[doc.Section]:
    if tour.writing is not None:
        blocks = (_writing_table(tour.writing), _written_text(tour.writing))
        notes = [note for each in _ways(tour.writing) for note in each.notes]
        yield doc.Section(
            "gpt",
            f"gpt: {_writing_words(tour.writing)}",
            (*blocks, doc.Bullets(list(dict.fromkeys(notes)), tone="unknown")),
            "Whole generations, interleaved.",
        )


def _ways(writing: Writing | None) -> tuple[Comparison, ...]:
    return (writing.cached, writing.int8) if writing else ()


def _fastest_exact(writing: Writing | None) -> Comparison | None:
    """Return the fastest way that writes the same text, if any does."""
    exact = [x for x in _ways(writing) if x.outputs is not None and x.outputs.is_identical]
    return max(exact, key=lambda each: each.speedup, default=None)


def _writing_words(writing: Writing) -> str:
    """Name the fastest way that writes the same text."""
    best = _fastest_exact(writing)
    if best is None or best.verdict != FASTER:
        return "gpt writes no faster with the same text"
    return f"gpt writes {ratio_text(best.speedup)} faster, the same text"


def _gain_text(comparison: Comparison) -> str:
    return f"{comparison.candidate_name}: {speedup_text(comparison)}, {_text_words(comparison)}"


def _written_text(writing: Writing) -> doc.Paragraph:
    return doc.Paragraph((doc.Strong(writing.prompt.strip()), f" {writing.text.strip()}"))


def _writing_table(writing: Writing) -> doc.Table:
    columns = [
        doc.Column("gpt writes"),
        doc.Column("tokens/s", "number"),
        doc.Column("speedup (95% interval)", "number"),
        doc.Column(""),
    ]
    rows: list[doc.Row] = []
    for each in _ways(writing):
        if not rows:
            rate = writing.count / each.baseline.median
            rows.append(doc.Row(("plain", doc.Cell(count_text(rate), rate), "", "")))
        rate = writing.count / each.candidate.median
        cells = (
            each.candidate_name,
            doc.Cell(count_text(rate), rate),
            doc.Cell(speedup_text(each), each.speedup, tone=TONES[each.verdict]),
            _text_words(each),
        )
        rows.append(doc.Row(cells))
    return doc.Table(columns, rows, is_sortable=False)


def _text_words(comparison: Comparison) -> str:
    found = comparison.outputs
    if found is None:
        return "not compared"
    if found.is_identical:
        return "the same text"
    return f"{percent_text(found.equal_share)} of the tokens are the same"


# ---------------------------------------------------------------- one model


def visit_document(place: int, visit: Visit) -> doc.Document:
    """Return the chapter of a model: what was found, why it is slow, what was tried, the proof.

    Notes and everything else are in the whole tour.
    """
    found, stop = visit.optimization, visit.stop
    whole = optimization_document(found)
    assert whole.banner is not None
    sections = {each.anchor: each for each in whole.blocks if isinstance(each, doc.Section)}
    banner = replace(whole.banner, verdict=f"{place}. {stop.target}: {whole.banner.verdict}")
    return doc.Document(
        f"Can {stop.target} be made {AIMS[stop.goal]}? It {stop.about}.",
        banner,
        [*_result(found), *(sections[each] for each in STORY if each in sections)],
        brief=whole.brief,
    )


def _result(found: Optimization) -> Iterator[doc.Block]:
    """Yield the recommended model beside the baseline; without one, what is smaller."""
    if found.profile is not None:
        rate = find_facts(found.profile).flops_per_s
        achieved = f", {rate_text(rate)}" if rate else ""
        latency = seconds_text(found.profile.latency.median)
        yield doc.Paragraph(f"Baseline: latency {latency}{achieved}.")
    best = found.recommended
    if best is None or best.comparison is None:
        yield from (doc.Paragraph(f"Not faster, but smaller: {each}.") for each in _smaller(found))
        return
    columns = [
        doc.Column("what"),
        doc.Column("baseline", "number"),
        doc.Column("candidate", "number"),
        doc.Column("candidate / baseline", "number"),
    ]
    yield doc.Table(columns, list(measured_rows(best.comparison)), is_sortable=False)
    if best.comparison.accuracy is not None:
        yield doc.Paragraph(accuracy_line(best.comparison.accuracy))


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


def _about(visit: Visit) -> Iterator[doc.Section]:
    """Yield the sections of one model, named after it."""
    found, name = visit.optimization, visit.stop.target
    whole = optimization_document(found)
    assert whole.banner is not None
    result = [doc.Paragraph(whole.banner.sentence), doc.Facts(whole.banner.facts), *_result(found)]
    yield doc.Section(name, f"{name}: {whole.banner.verdict}", result, f"It {visit.stop.about}.")
    for each in whole.blocks:
        if isinstance(each, doc.Section):
            yield replace(each, anchor=f"{name}-{each.anchor}", title=f"{name}: {each.title}")


def _once(sections: list[doc.Section]) -> Iterator[doc.Section]:
    """Leave out the flame graphs after the first: their script works on one picture."""
    has_flame = False
    for each in sections:
        is_flame = any(isinstance(block, FlameGraph) for block in each.blocks)
        if not (is_flame and has_flame):
            yield each
        has_flame = has_flame or is_flame


# ---------------------------------------------------------------- the end


def ending_document(tour: Tour) -> doc.Document:
    """Return the headline of the tour, what came of each model, and how to go on."""
    banner = replace(_banner(tour), sentence=INTERRUPTED if tour.was_interrupted else "")
    return doc.Document(_where(tour), banner, (doc.Facts(banner.facts), _next(tour)))


def _next(tour: Tour) -> doc.Section:
    shown = "\n".join(f"$ {command}\n    {about}" for command, about in NEXT_COMMANDS)
    blocks: list[doc.Block] = [doc.Preformatted(shown)]
    if not tour.has_compiled_kernels:
        fast = (
            "This was NumPy alone. ",
            doc.Code(FAST),
            " brings compiled kernels: products of 8-bit integers, which were slow or not tried "
            "here, and fused layers. What they gain here was not measured.",
        )
        blocks.append(doc.Paragraph(fast))
    return doc.Section("next", "With your own model", blocks)

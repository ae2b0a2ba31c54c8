"""The document of an optimization: what helps and the proof, then everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tinytorch.errors import TinyTorchError
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting import document as doc
from tinytorch.reporting.advice import advice_section, agreement_words
from tinytorch.reporting.comparison import (
    measured_rows,
    preparation_lines,
    score_text,
    speedup_ends,
)
from tinytorch.reporting.layers import layers_section
from tinytorch.reporting.optimization_words import (
    BASELINE_NAME,
    TONES,
    ablation_plot,
    accuracy_change,
    accuracy_text,
    asked_words,
    attempt_phrases,
    beside_lines,
    brief_facts,
    confirmation_lines,
    contribution_words,
    every_note,
    forest_plot,
    headline,
    interval_text,
    limit_line,
    limits_owner,
    metric_of,
    reason_lines,
    share_text,
    speed_text,
    timing_notes,
    verdict_word,
    why_slow,
)
from tinytorch.reporting.profile import roofline_section, time_section
from tinytorch.reporting.quantities import UNKNOWN, factor_text, ratio_text, seconds_text
from tinytorch.reporting.saved import process_sections
from tinytorch.reporting.transforms import gain_text, settings_text, skipped_lines
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BASELINE,
    BETTER,
    KEPT,
    LIMIT_BROKEN,
    NOT_TRIED,
    OUTCOMES,
    Attempt,
    is_less,
    is_more,
)
from tinytorch.tuning.optimization import AtSize, Optimization
from tinytorch.tuning.saving import snippet

RECOMMENDED = "★"
TRIED, DETAILS = "What was tried", "What each one did, and why it was not used"
LEAST_NAME = 32
LONGEST_NAME = 44
"""Letters of a stack's name that stay whole in brief."""
LIMIT_TONES: dict[str, doc.Tone] = {KEPT: "good", LIMIT_BROKEN: "bad"}
INTERRUPTED = "Interrupted: this is what was finished before."
ATTEMPTS_ABOUT = (
    "Speedups over the baseline. Each attempt is a stack of changes to a copy of the model. What "
    "is less accurate was not timed; with an inconclusive accuracy it was, and is never "
    "recommended."
)
FRONT_ABOUT = (
    "As shares of the baseline. Nothing is as good as one on the front in time, memory, size and "
    "accuracy, and better in one. In the pictures these are full, the others hollow."
)


SIZES_ABOUT = (
    "Each attempt is carried out anew for inputs of that size: a gain at one size need not be one "
    "at another. Accuracy was judged at the size of the example inputs."
)


def optimization_document(optimization: Optimization) -> doc.Document:
    """Return an optimization: the verdict first, then the evidence."""
    return doc.Document(
        f"Optimization of {optimization.name}",
        _banner(optimization),
        list(_sections(optimization)),
        every_note(optimization),
        optimization.environment,
        optimization.to_dict(),
        "tinytorch-optimization.json",
        asked_words(optimization),
        brief=list(_brief(optimization)),
        minor=timing_notes(optimization),
    )


# ---------------------------------------------------------------- what a terminal shows of it

ROWS = 6
"""Attempts that have a row in brief."""


def _brief(optimization: Optimization) -> Iterator[doc.Block]:
    """Yield what was tried, what the recommended model costs, and how to go on."""
    timed = [each for each in optimization.ranked if each.comparison]
    if timed:
        yield _brief_table(optimization, timed[:ROWS])
    if optimization.at_sizes:
        yield _sizes_table(optimization)
    facts = [*brief_facts(optimization, hidden=[each.name for each in timed[ROWS:]])]
    yield doc.Facts(facts)


def _sizes_table(optimization: Optimization) -> doc.Table:
    """Return a row for each size and attempt that was compared there."""

    def speedup(each: AtSize) -> str:
        return ratio_text(each.comparison.speedup) if each.comparison else UNKNOWN

    def interval(each: AtSize) -> str:
        return speedup_ends(each.comparison) if each.comparison else UNKNOWN

    return doc.table_of(
        sorted(optimization.at_sizes, key=lambda each: (each.axis, each.size)),
        doc.column("at", lambda each: f"{each.axis} {each.size}"),
        doc.column("attempt", lambda each: each.attempt),
        doc.column("speedup", speedup, "number"),
        doc.column("95% interval", interval, "number", rank=1),
        doc.column("outcome", lambda x: x.comparison.verdict if x.comparison else x.reason),
        caption="Compared with the baseline at other sizes.",
    )


def _brief_table(optimization: Optimization, attempts: Sequence[Attempt]) -> doc.Table:
    """Return a row for each attempt; the one that is recommended as its confirmation shows it."""
    best, chosen = optimization.recommended, optimization.chosen
    names = {each.name: f"{RECOMMENDED} {each.name}" for each in attempts if each is chosen}
    return doc.table_of(
        [(best if each is chosen else each) or each for each in attempts],
        doc.column("tried", lambda each: names.get(each.name, each.name), least=LONGEST_NAME),
        doc.column("speedup", speed_text, "number"),
        doc.column("95% interval", interval_text, "number", rank=3),
        doc.column("outcome", lambda each: doc.Cell(each.outcome, tone=TONES[each.outcome])),
        doc.column("memory", lambda each: _share(each.measured.memory), "number", rank=2),
        doc.column("size", lambda each: _share(each.measured.size), "number", rank=4),
        doc.column(_score_title(optimization), accuracy_text, "number", rank=1),
    )


def _sections(optimization: Optimization) -> Iterator[doc.Section]:
    """Yield what there is something to say about."""
    yield _attempts(optimization)
    yield from _confirmation(optimization)
    yield from _limits(optimization)
    yield from _snippet(optimization)
    if reasons := why_slow(optimization):
        about = "The baseline, from its profile."
        yield doc.Section("why", "Why it is slow", [doc.Paragraph(each) for each in reasons], about)
    yield from _unused(optimization)
    if optimization.at_sizes:
        yield doc.Section("sizes", "Other sizes", [_sizes_table(optimization)], SIZES_ABOUT)
    yield from _ablation(optimization)
    if any(each.comparison for each in optimization.attempts):
        yield _trade_offs(optimization)
    yield from process_sections(optimization.process)
    yield from _suggestions(optimization)
    yield from _profile(optimization)


# ---------------------------------------------------------------- the verdict


def _banner(optimization: Optimization) -> doc.Banner:
    said = headline(optimization).removeprefix(f"{optimization.name}: ")
    if optimization.was_interrupted:
        said += f" {INTERRUPTED}"
    facts = tuple(_facts(optimization))
    return doc.Banner(verdict_word(optimization), said, facts, _tone(optimization))


def _tone(optimization: Optimization) -> doc.Tone:
    if any(each.verdict == LIMIT_BROKEN for each in optimization.limit_checks):
        return "bad"
    best = optimization.recommended
    if best is None:
        open_ones = optimization.refuted or optimization.inconclusive or optimization.lacked_time
        return "neutral" if optimization.was_judged and not open_ones else "unknown"
    return "good" if best.outcome == BETTER else "neutral"


def _facts(optimization: Optimization) -> Iterator[tuple[str, str]]:
    """Yield what the recommended model needs, before and after, and what finding it took."""
    best = optimization.recommended
    if best is not None and best.comparison is not None:
        for what, before, after, _ in measured_rows(best.comparison):
            yield what, after if before == after else f"{before} → {after}"
        accuracy = best.comparison.accuracy
        if accuracy is not None:
            write = score_text(accuracy)
            means = (accuracy.baseline_mean, accuracy.candidate_mean)
            yield accuracy.metric, " → ".join(dict.fromkeys(map(write, means)))
    count = len(optimization.attempts)
    if count:
        yield "better", f"{len(optimization.helped)} of {count} attempts"
    yield "took", seconds_text(optimization.seconds)


def _confirmation(optimization: Optimization) -> Iterator[doc.Section]:
    tone: doc.Tone = "" if optimization.confirmation else "unknown"
    said = [doc.Paragraph(each) for each in beside_lines(optimization)]
    said += [doc.Paragraph(each, tone) for each in confirmation_lines(optimization)]
    if said:
        yield doc.Section("confirmation", "Confirmation", said)


def _limits(optimization: Optimization) -> Iterator[doc.Section]:
    checks = optimization.limit_checks
    if checks:
        lines = [
            doc.Paragraph(limit_line(x), LIMIT_TONES.get(x.verdict, "unknown")) for x in checks
        ]
        yield doc.Section("limits", "Limits", lines, f"Of {limits_owner(optimization)}.")


# ---------------------------------------------------------------- everything that was tried


def _attempts(optimization: Optimization) -> doc.Section:
    rows = optimization.ranked
    if not rows:
        blocks: list[doc.Block] = [doc.Paragraph("Nothing was tried.", "faint")]
        return doc.Section("attempts", TRIED, blocks)
    score = _score_title(optimization)
    columns = [
        doc.Column("attempt", least=LEAST_NAME, about=f"{RECOMMENDED} is recommended"),
        doc.Column("outcome"),
        doc.Column("predicted", "number", "predicted speedup", rank=4),
        doc.Column("speedup", "number", "baseline time over candidate time"),
        doc.Column("95% interval", "number", rank=7),
        doc.Column("memory", "number", "peak memory as a share of the baseline's", rank=2),
        doc.Column("size", "number", "size of the file as a share of the baseline's", rank=2),
        doc.Column(score, "number", f"mean {metric_of(optimization)}", rank=1),
        doc.Column(
            "setup", "number", "setup time, such as compiling; not part of the times", rank=5
        ),
        doc.Column("took", "number", "how long trying it took", rank=6),
    ]
    table = doc.Table(columns, [_attempt_row(optimization, each) for each in rows])
    plot = forest_plot(optimization)
    details = doc.Folded(DETAILS, [*map(_details, rows)], media=("html",))
    blocks = [*([plot] if plot else []), table, details]
    return doc.Section("attempts", TRIED, blocks, ATTEMPTS_ABOUT)


def _score_title(optimization: Optimization) -> str:
    """Return a short title for scores: long names of metrics have no room above a column."""
    return "accuracy" if metric_of(optimization) == "accuracy" else "score"


def _attempt_row(optimization: Optimization, attempt: Attempt) -> doc.Row:
    measured, found = attempt.measured, attempt.comparison
    gain, tone = optimization.predicted(attempt), TONES[attempt.outcome]
    mark = f"{RECOMMENDED} " if attempt is optimization.chosen else ""
    accuracy = found.accuracy.candidate_mean if found and found.accuracy else None
    cells = (
        doc.Cell(f"{mark}{attempt.name}", attempt.name),
        # In one line: the words of an outcome belong together.
        doc.Cell(
            attempt.outcome.replace(" ", "\u00a0"), tone=tone, title=OUTCOMES[attempt.outcome]
        ),
        doc.Cell(
            factor_text(gain.value if gain else None),
            gain.value if gain else None,
            title=f"{gain_text(gain)}: {gain.basis}" if gain else "",
        ),
        doc.Cell(speed_text(attempt), found.speedup if found else None, tone=tone),
        doc.Cell(interval_text(attempt), found.speedup_low if found else None),
        _share(measured.memory, has_tone=True),
        _share(measured.size, has_tone=True),
        doc.Cell(accuracy_text(attempt), accuracy),
        doc.Cell(seconds_text(attempt.once_s) if attempt.once_s else "", attempt.once_s),
        doc.Cell(seconds_text(attempt.seconds), attempt.seconds),
    )
    return doc.Row(cells, tone="" if found else "faint")


def _share(share: Estimate | None, *, has_tone: bool = False) -> doc.Cell:
    if share is None:
        return doc.Cell(UNKNOWN)
    tone = "good" if is_less(share) else "bad" if is_more(share) else ""
    return doc.Cell(share_text(share), share.value, tone=tone if has_tone else "")


def _details(attempt: Attempt) -> doc.Folded:
    """Return what an attempt did, with its plans."""
    found = attempt.comparison
    blocks: list[doc.Block] = [doc.Paragraph(f"{OUTCOMES[attempt.outcome]}.".capitalize(), "faint")]
    if found is None:
        blocks += [doc.Paragraph(attempt.reason)] if attempt.reason else []
    else:
        blocks.append(doc.Paragraph(f"It is {', '.join(attempt_phrases(attempt))}."))
        blocks += map(doc.Paragraph, preparation_lines(found))
        doubts = [attempt.reason] if attempt.outcome == ACCURACY_INCONCLUSIVE else []
        doubts += [found.contradiction] if found.contradiction else []
        blocks += [doc.Paragraph(each, "unknown") for each in doubts]
    blocks += [doc.Paragraph(note, "unknown") for note in attempt.notes]
    for plan in attempt.plans:
        blocks += _plan(plan)
    return doc.Folded(f"{attempt.name} ({attempt.outcome})", blocks)


def _plan(plan: Plan) -> Iterator[doc.Block]:
    yield doc.Paragraph(doc.Code(f"{plan.transform}({settings_text(plan)})"))
    if plan.steps:
        yield doc.table_of(
            plan.step_groups,
            doc.column("layer", lambda x: x.layers.name or "(the model itself)", "code"),
            doc.column("n", lambda each: str(len(each.layers)), "number"),
            doc.column("what", lambda each: each.what),
            doc.column("why", lambda each: each.why),
            is_sortable=False,
        )
    else:
        yield doc.Paragraph("No layer changes.")
    lines = [f"{names}: left alone, {reason}" for names, reason in skipped_lines(plan)]
    yield doc.Bullets([*lines, *(f"note: {note}" for note in plan.notes)])


def _unused(optimization: Optimization) -> Iterator[doc.Section]:
    """Yield the reasons, which a page has among the details of the attempts."""
    lines: list[doc.Words] = [
        (doc.Code(each.name), f": {words}") for each, words in reason_lines(optimization)
    ]
    if lines:
        title = "1 attempt" if len(lines) == 1 else f"{len(lines)} attempts"
        folded = doc.Folded(title, (doc.Bullets(lines),), media=("terminal", "markdown"))
        shown = doc.Only(("terminal", "markdown"), (folded,))
        yield doc.Section("unused", "What was not used, and why", (shown,))


def _open(title: str, *blocks: doc.Block) -> doc.Folded:
    """Return what only Markdown folds away: a comment on a pull request is short."""
    return doc.Folded(title, blocks, is_open=True, media=("terminal", "markdown", "html"))


def _ablation(optimization: Optimization) -> Iterator[doc.Section]:
    if not optimization.ablation:
        return
    lines: list[doc.Words] = [
        (doc.Code(each.part), f": {contribution_words(each)}") for each in optimization.ablation
    ]
    plot = ablation_plot(optimization)
    charts = [doc.Only(("html",), (plot,))] if plot else []
    about = "The whole stack against the stack without the part, interleaved."
    yield doc.Section("parts", "What each part brings", (*charts, doc.Bullets(lines)), about)


# ---------------------------------------------------------------- time against accuracy, memory
# and size: every acceptable attempt a point


def _trade_offs(optimization: Optimization) -> doc.Section:
    """Return a picture for each objective, and the front: on a page, as the key to the letters."""
    named = dict(zip(_on_pictures(optimization), doc.letters(), strict=False))
    key = doc.Only(("html",), (_front(optimization, named),))
    front = _open("The front", _front(optimization, dict.fromkeys(optimization.front, "")))
    pictures = list(_pictures(optimization, named))
    charts = doc.Beside([*(each for each in pictures if not isinstance(each, str)), key])
    missing = [doc.Paragraph(each, "faint") for each in pictures if isinstance(each, str)]
    blocks = (charts, doc.Only(("html",), missing), doc.Only(("terminal", "markdown"), (front,)))
    return doc.Section("trade-offs", "The Pareto front", blocks, FRONT_ABOUT)


def _on_pictures(optimization: Optimization) -> Iterator[str]:
    """Yield "" for the baseline, and every acceptable attempt with a time, the best first."""
    yield ""
    for each in optimization.ranked:
        if each.is_acceptable and each.measured.time is not None:
            yield each.name


def _pictures(
    optimization: Optimization, named: Mapping[str, str]
) -> Iterator[doc.ParetoPlot | str]:
    """Yield the picture of each objective, or why there is none."""
    titles = {
        "accuracy": f"change of the {metric_of(optimization)}",
        "memory": "peak memory",
        "size": "size of the file",
    }
    for objective, title in titles.items():
        points = list(_points(optimization, objective, named))
        if len(points) < 2:
            yield f"No picture of the {title}: it is not known of any attempt."
            continue
        is_score = objective == "accuracy"
        unit = _score_unit(optimization)[1] if is_score else "fraction"
        yield doc.ParetoPlot(
            points,
            ("time", title),
            ("fraction", unit),
            (True, not is_score),
            title=f"{title.capitalize()} against time.",
        )


def _points(
    optimization: Optimization, objective: str, named: Mapping[str, str]
) -> Iterator[doc.ParetoPoint]:
    """Yield the baseline and the attempts that have both numbers."""
    known = {each.name: each for each in optimization.attempts}
    factor = _score_unit(optimization)[0] if objective == "accuracy" else 1
    for name, letter in named.items():
        measured = known[name].measured if name else BASELINE
        x, y = measured.time, getattr(measured, objective)
        if x is not None and y is not None:
            scaled = Estimate(*(factor * end for end in (y.value, y.low, y.high)))
            is_on_front = name in optimization.front
            tone = TONES[known[name].outcome] if name else "neutral"
            yield doc.ParetoPoint(name or BASELINE_NAME, x, scaled, is_on_front, tone, letter)


def _score_unit(optimization: Optimization) -> tuple[float, str]:
    """Return by what changes of scores are multiplied, and their unit then."""
    compared = [each.comparison for each in optimization.attempts if each.comparison]
    is_binary = any(each.accuracy.is_binary for each in compared if each.accuracy)
    return (100, "points") if is_binary else (1, "")


def _front(optimization: Optimization, named: Mapping[str, str]) -> doc.Table:
    """Return the numbers of some attempts beside their letters; those off the front are faint."""
    known = {each.name: each for each in optimization.attempts}
    rows: list[doc.Row] = []
    for name, letter in named.items():
        measured = known[name].measured if name else BASELINE
        change = accuracy_change(known[name]) if name else UNKNOWN
        shares = [_share(each) for each in (measured.time, measured.memory, measured.size)]
        gained = measured.accuracy
        accuracy = doc.Cell(change, gained.value if gained else None)
        label = " ".join(filter(None, (letter, name or BASELINE_NAME)))
        tone: doc.Tone = "" if name in optimization.front else "faint"
        rows.append(doc.Row([label, *shares, accuracy], tone=tone))
    ranks = {"time": 0, "memory": 1, "size": 1, _score_title(optimization): 0}
    numbers = [doc.Column(title, "number", rank=rank) for title, rank in ranks.items()]
    return doc.Table([doc.Column("attempt", least=LEAST_NAME), *numbers], rows)


# ---------------------------------------------------------------- what the profile suggests


def _suggestions(optimization: Optimization) -> Iterator[doc.Section]:
    """Yield what something here carries out, predicted and measured, and what it does not."""
    done = [each for each in optimization.advice if each.entry]
    manual = [each for each in optimization.advice if not each.entry]
    if done:
        columns = [
            doc.Column("suggestion", least=LEAST_NAME),
            doc.Column("done by", "code"),
            doc.Column("predicted", "number", rank=1),
            doc.Column("measured", "number", rank=1),
            doc.Column("outcome"),
            doc.Column("", about="whether it is as predicted", rank=2),
        ]
        table = doc.Table(columns, [_suggestion_row(optimization, each) for each in done])
        tried = {x.entry: found for x in done if (found := optimization.outcome_of(x))}
        evidence = advice_section(done, tried).blocks
        blocks = (table, doc.Folded("Evidence", evidence))
        about = "Predicted within what Amdahl's law and the roofline allow, before any was tried."
        yield doc.Section("advice", "Suggestions, and what came of each alone", blocks, about)
    if manual:
        yield doc.Section("next", "Manual steps", advice_section(manual).blocks)


def _suggestion_row(optimization: Optimization, advice: Advice) -> doc.Row:
    tried, gain = optimization.outcome_of(advice), advice.predicted
    found = tried.comparison if tried else None
    cells = (
        advice.title,
        advice.entry,
        doc.Cell(gain_text(gain) if gain else UNKNOWN, gain.value if gain else None),
        doc.Cell(speed_text(tried) if tried else UNKNOWN, found.speedup if found else None),
        doc.Cell(
            tried.outcome if tried else NOT_TRIED, tone=TONES[tried.outcome] if tried else "faint"
        ),
        agreement_words(advice, tried) if tried else "",
    )
    return doc.Row(cells, tone="" if tried else "faint")


# ---------------------------------------------------------------- what to do with it


def _snippet(optimization: Optimization) -> Iterator[doc.Section]:
    if optimization.recommended is None:
        return
    try:
        block: doc.Block = doc.Preformatted(snippet(optimization))
    except TinyTorchError as error:  # plans that another version kept, for example
        block = doc.Paragraph(f"There is no program for it: {error}", "faint")
    yield doc.Section("snippet", "Do it yourself", (doc.Folded("Program", (block,), is_open=True),))


def _profile(optimization: Optimization) -> Iterator[doc.Section]:
    """Yield where the time of the baseline goes; what was read back has no profile."""
    if optimization.profile is None:
        return
    yield time_section(optimization.profile)
    for section in (layers_section(optimization.profile), roofline_section(optimization.profile)):
        yield replace(section, blocks=(doc.Only(("html",), section.blocks),))

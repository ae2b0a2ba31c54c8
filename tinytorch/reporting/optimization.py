"""The document of an optimization: what helps and the proof, then everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tinytorch.errors import TinyTorchError
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.advice import advice_section, agreement_words
from tinytorch.reporting.comparison import (
    measured_rows,
    preparation_lines,
    score_text,
)
from tinytorch.reporting.document import (
    Banner,
    Beside,
    Block,
    Bullets,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Folded,
    Only,
    Paragraph,
    ParetoPlot,
    ParetoPoint,
    Preformatted,
    Row,
    Section,
    Strong,
    Table,
    Tone,
    Words,
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
    verdict_word,
    why_slow,
)
from tinytorch.reporting.profile import roofline_section, time_section
from tinytorch.reporting.quantities import UNKNOWN, factor_text, seconds_text
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
    Measured,
    is_less,
    is_more,
)
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.saving import snippet

__all__ = ["INTERRUPTED", "optimization_document"]

RECOMMENDED = "★"
LEAST_NAME = 32
LIMIT_TONES: dict[str, Tone] = {KEPT: "good", LIMIT_BROKEN: "bad"}
INTERRUPTED = "Interrupted: this is what was finished before."
SPEEDUPS_ABOUT = "Of what is as good as the baseline, or may be; an interval that holds 1 is open."
ATTEMPTS_ABOUT = (
    "Each is a stack of changes to a copy of the model. What is not as good as the baseline was "
    "not timed; with an inconclusive accuracy it was, and is never recommended."
)
FRONT_ABOUT = (
    "As shares of the baseline. Nothing is shown to be as good as one of these in time, memory, "
    "size and accuracy, and better in one."
)


def optimization_document(optimization: Optimization) -> Document:
    """Return an optimization: the verdict first, then the evidence."""
    return Document(
        f"Optimization of {optimization.name}",
        _banner(optimization),
        list(_sections(optimization)),
        every_note(optimization),
        optimization.environment,
        optimization.to_dict(),
        "tinytorch-optimization.json",
        asked_words(optimization),
    )


def _sections(optimization: Optimization) -> Iterator[Section]:
    """Yield what there is something to say about."""
    yield from _confirmation(optimization)
    yield from _limits(optimization)
    if plot := forest_plot(optimization):
        yield Section("speedups", "Speedups", (plot,), SPEEDUPS_ABOUT)
    if reasons := why_slow(optimization):
        about = "The baseline, from its profile."
        yield Section("why", "Why it is slow", [Paragraph(each) for each in reasons], about)
    yield _attempts(optimization)
    yield from _unused(optimization)
    yield from _ablation(optimization)
    if any(each.comparison for each in optimization.attempts):
        yield _trade_offs(optimization)
    yield from _suggestions(optimization)
    yield from _snippet(optimization)
    yield from _profile(optimization)


# ---------------------------------------------------------------- the verdict


def _banner(optimization: Optimization) -> Banner:
    said = headline(optimization).removeprefix(f"{optimization.name}: ")
    if optimization.was_interrupted:
        said += f" {INTERRUPTED}"
    facts = tuple(_facts(optimization))
    return Banner(verdict_word(optimization), said, facts, _tone(optimization))


def _tone(optimization: Optimization) -> Tone:
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


def _confirmation(optimization: Optimization) -> Iterator[Section]:
    tone: Tone = "" if optimization.confirmation else "unknown"
    said = [Paragraph(each) for each in beside_lines(optimization)]
    said += [Paragraph(each, tone) for each in confirmation_lines(optimization)]
    if said:
        yield Section("confirmation", "Confirmation", said)


def _limits(optimization: Optimization) -> Iterator[Section]:
    checks = optimization.limit_checks
    if checks:
        lines = [Paragraph(limit_line(x), LIMIT_TONES.get(x.verdict, "unknown")) for x in checks]
        yield Section("limits", "Limits", lines, f"Of {limits_owner(optimization)}.")


# ---------------------------------------------------------------- everything that was tried


def _attempts(optimization: Optimization) -> Section:
    rows = optimization.ranked
    if not rows:
        blocks: list[Block] = [Paragraph("Nothing was tried.", "faint")]
        return Section("attempts", "Everything that was tried", blocks)
    score = _score_title(optimization)
    columns = [
        Column("attempt", least=LEAST_NAME, about=f"{RECOMMENDED} is recommended"),
        Column("outcome"),
        Column("predicted", "number", "predicted speedup", rank=4),
        Column("speedup", "number", "baseline time over candidate time"),
        Column("95% interval", "number", rank=7),
        Column("memory", "number", "peak memory as a share of the baseline's", rank=2),
        Column("size", "number", "size of the file as a share of the baseline's", rank=2),
        Column(score, "number", f"mean {metric_of(optimization)}", rank=1),
        Column("setup", "number", "setup time, such as compiling; not part of the times", rank=5),
        Column("took", "number", "how long trying it took", rank=6),
    ]
    table = Table(columns, [_attempt_row(optimization, each) for each in rows])
    details: list[Block] = [Paragraph(Strong("What each one did")), *map(_details, rows)]
    blocks = [table, Only(("html",), details)]
    return Section("attempts", "Everything that was tried", blocks, ATTEMPTS_ABOUT)


def _score_title(optimization: Optimization) -> str:
    """Return a short title for scores: long names of metrics have no room above a column."""
    return "accuracy" if metric_of(optimization) == "accuracy" else "score"


def _attempt_row(optimization: Optimization, attempt: Attempt) -> Row:
    measured, found = attempt.measured, attempt.comparison
    gain, tone = optimization.predicted(attempt), TONES[attempt.outcome]
    mark = f"{RECOMMENDED} " if attempt is optimization.chosen else ""
    accuracy = found.accuracy.candidate_mean if found and found.accuracy else None
    cells = (
        Cell(f"{mark}{attempt.name}", attempt.name),
        # In one line: the words of an outcome belong together.
        Cell(attempt.outcome.replace(" ", "\u00a0"), tone=tone, title=OUTCOMES[attempt.outcome]),
        Cell(
            factor_text(gain.value if gain else None),
            gain.value if gain else None,
            title=f"{gain_text(gain)}: {gain.basis}" if gain else "",
        ),
        Cell(speed_text(attempt), found.speedup if found else None, tone=tone),
        Cell(interval_text(attempt), found.speedup_low if found else None),
        _share(measured.memory, has_tone=True),
        _share(measured.size, has_tone=True),
        Cell(accuracy_text(attempt), accuracy),
        Cell(seconds_text(attempt.once_s) if attempt.once_s else "", attempt.once_s),
        Cell(seconds_text(attempt.seconds), attempt.seconds),
    )
    return Row(cells, tone="" if found else "faint")


def _share(share: Estimate | None, *, has_tone: bool = False) -> Cell:
    if share is None:
        return Cell(UNKNOWN)
    tone = "good" if is_less(share) else "bad" if is_more(share) else ""
    return Cell(share_text(share), share.value, tone=tone if has_tone else "")


def _details(attempt: Attempt) -> Folded:
    """Return what an attempt did, with its plans."""
    found = attempt.comparison
    blocks: list[Block] = [Paragraph(f"{OUTCOMES[attempt.outcome]}.".capitalize(), "faint")]
    if found is None:
        blocks += [Paragraph(attempt.reason)] if attempt.reason else []
    else:
        blocks.append(Paragraph(f"It is {', '.join(attempt_phrases(attempt))}."))
        blocks += map(Paragraph, preparation_lines(found))
        doubts = [attempt.reason] if attempt.outcome == ACCURACY_INCONCLUSIVE else []
        doubts += [found.contradiction] if found.contradiction else []
        blocks += [Paragraph(each, "unknown") for each in doubts]
    blocks += [Paragraph(note, "unknown") for note in attempt.notes]
    for plan in attempt.plans:
        blocks += _plan(plan)
    return Folded(f"{attempt.name} ({attempt.outcome})", blocks)


def _plan(plan: Plan) -> Iterator[Block]:
    yield Paragraph(Code(f"{plan.transform}({settings_text(plan)})"))
    if plan.steps:
        columns = [Column("layer", "code"), Column("n", "number"), Column("what"), Column("why")]
        rows = [
            (each.layers.name or "(the model itself)", str(len(each.layers)), each.what, each.why)
            for each in plan.step_groups
        ]
        yield Table(columns, rows, is_sortable=False)
    else:
        yield Paragraph("No layer changes.")
    lines = [f"{names}: left alone, {reason}" for names, reason in skipped_lines(plan)]
    yield Bullets([*lines, *(f"note: {note}" for note in plan.notes)])


def _unused(optimization: Optimization) -> Iterator[Section]:
    lines: list[Words] = [
        (Code(each.name), f": {words}") for each, words in reason_lines(optimization)
    ]
    if lines:
        title = "1 attempt" if len(lines) == 1 else f"{len(lines)} attempts"
        yield Section("unused", "What was not used, and why", (_open(title, Bullets(lines)),))


def _open(title: str, *blocks: Block) -> Folded:
    """Return what only Markdown folds away: a comment on a pull request is short."""
    return Folded(title, blocks, is_open=True, media=("terminal", "markdown", "html"))


def _ablation(optimization: Optimization) -> Iterator[Section]:
    if not optimization.ablation:
        return
    lines: list[Words] = [
        (Code(each.part), f": {contribution_words(each)}") for each in optimization.ablation
    ]
    plot = ablation_plot(optimization)
    charts = [Only(("html",), (plot,))] if plot else []
    about = "The whole stack against the stack without the part, interleaved."
    yield Section("parts", "What each part brings", (*charts, Bullets(lines)), about)


# ---------------------------------------------------------------- time against accuracy, memory
# and size: every acceptable attempt a point


def _trade_offs(optimization: Optimization) -> Section:
    charts = Beside(list(_pictures(optimization)))
    table = _open("The front", _front(optimization))
    return Section("trade-offs", "The Pareto front", (charts, table), FRONT_ABOUT)


def _pictures(optimization: Optimization) -> Iterator[Chart | Only]:
    titles = {
        "accuracy": f"change of the {metric_of(optimization)}",
        "memory": "peak memory",
        "size": "size of the file",
    }
    for objective, title in titles.items():
        points = list(_points(optimization, objective))
        if len(points) < 2:
            words = f"No picture of the {title}: it is not known of any attempt."
            yield Only(("html",), (Paragraph(words, "faint"),))
            continue
        is_score = objective == "accuracy"
        unit = _score_unit(optimization)[1] if is_score else "fraction"
        yield ParetoPlot(
            points,
            ("time", title),
            ("fraction", unit),
            (True, not is_score),
            title=f"{title.capitalize()} against time.",
            about="Full points are on the front over all four.",
        )


def _points(optimization: Optimization, objective: str) -> Iterator[ParetoPoint]:
    """Yield the baseline and every acceptable attempt that has both numbers."""
    candidates: list[tuple[str, str, Measured, str]] = [("", BASELINE_NAME, BASELINE, "neutral")]
    candidates += [
        (each.name, each.name, each.measured, TONES[each.outcome])
        for each in optimization.ranked
        if each.is_acceptable
    ]
    factor = _score_unit(optimization)[0] if objective == "accuracy" else 1
    for name, shown, measured, tone in candidates:
        x, y = measured.time, getattr(measured, objective)
        if x is not None and y is not None:
            scaled = Estimate(*(factor * end for end in (y.value, y.low, y.high)))
            yield ParetoPoint(shown, x, scaled, name in optimization.front, tone)


def _score_unit(optimization: Optimization) -> tuple[float, str]:
    """Return by what changes of scores are multiplied, and their unit then."""
    compared = [each.comparison for each in optimization.attempts if each.comparison]
    is_binary = any(each.accuracy.is_binary for each in compared if each.accuracy)
    return (100, "points") if is_binary else (1, "")


def _front(optimization: Optimization) -> Table:
    known = {each.name: each for each in optimization.attempts}
    rows: list[list[Cell | str]] = []
    for name in optimization.front:
        measured = known[name].measured if name else BASELINE
        change = accuracy_change(known[name]) if name else UNKNOWN
        shares = [_share(each) for each in (measured.time, measured.memory, measured.size)]
        gained = measured.accuracy
        accuracy = Cell(change, gained.value if gained else None)
        rows.append([name or BASELINE_NAME, *shares, accuracy])
    ranks = {"time": 0, "memory": 1, "size": 1, _score_title(optimization): 0}
    numbers = [Column(title, "number", rank=rank) for title, rank in ranks.items()]
    return Table([Column("attempt", least=LEAST_NAME), *numbers], rows)


# ---------------------------------------------------------------- what the profile suggests


def _suggestions(optimization: Optimization) -> Iterator[Section]:
    """Yield what something here carries out, predicted and measured, and what it does not."""
    done = [each for each in optimization.advice if each.entry]
    manual = [each for each in optimization.advice if not each.entry]
    if done:
        columns = [
            Column("suggestion", least=LEAST_NAME),
            Column("done by", "code"),
            Column("predicted", "number", rank=1),
            Column("measured", "number", rank=1),
            Column("outcome"),
            Column("", about="whether it is as predicted", rank=2),
        ]
        table = Table(columns, [_suggestion_row(optimization, each) for each in done])
        tried = {x.entry: found for x in done if (found := optimization.outcome_of(x))}
        evidence = advice_section(done, tried).blocks
        blocks = (table, Folded("Evidence", evidence))
        about = "Predicted within what Amdahl's law and the roofline allow, before any was tried."
        yield Section("advice", "Suggestions, and what came of each alone", blocks, about)
    if manual:
        yield Section("next", "Manual steps", advice_section(manual).blocks)


def _suggestion_row(optimization: Optimization, advice: Advice) -> Row:
    tried, gain = optimization.outcome_of(advice), advice.predicted
    found = tried.comparison if tried else None
    cells = (
        advice.title,
        advice.entry,
        Cell(gain_text(gain) if gain else UNKNOWN, gain.value if gain else None),
        Cell(speed_text(tried) if tried else UNKNOWN, found.speedup if found else None),
        Cell(
            tried.outcome if tried else NOT_TRIED, tone=TONES[tried.outcome] if tried else "faint"
        ),
        agreement_words(advice, tried) if tried else "",
    )
    return Row(cells, tone="" if tried else "faint")


# ---------------------------------------------------------------- what to do with it


def _snippet(optimization: Optimization) -> Iterator[Section]:
    if optimization.recommended is None:
        return
    try:
        block: Block = Preformatted(snippet(optimization))
    except TinyTorchError as error:  # plans that another version kept, for example
        block = Paragraph(f"There is no program for it: {error}", "faint")
    yield Section("snippet", "Do it yourself", (Folded("Program", (block,), is_open=True),))


def _profile(optimization: Optimization) -> Iterator[Section]:
    """Yield where the time of the baseline goes; what was read back has no profile."""
    if optimization.profile is None:
        return
    yield time_section(optimization.profile)
    for section in (layers_section(optimization.profile), roofline_section(optimization.profile)):
        yield replace(section, blocks=(Only(("html",), section.blocks),))

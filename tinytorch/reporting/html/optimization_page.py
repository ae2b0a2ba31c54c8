"""The page of an optimization: what helps and the proof, everything else below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinytorch.errors import TinyTorchError
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.advice import advice_section
from tinytorch.reporting.comparison import (
    difference_text,
    measured_rows,
    preparation_lines,
    score_text,
    speedup_text,
)
from tinytorch.reporting.document import Tone
from tinytorch.reporting.html.forest import forest_picture
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix, section_from
from tinytorch.reporting.html.pareto import ParetoPoint, pareto_plot
from tinytorch.reporting.html.plot import beside, figure
from tinytorch.reporting.layers import layers_section
from tinytorch.reporting.optimization_words import (
    AS_IT_IS,
    TONES,
    ablation_plot,
    accuracy_change,
    accuracy_text,
    attempt_phrases,
    beside_lines,
    confirmation_lines,
    contribution_words,
    every_note,
    forest_plot,
    front_name,
    headline,
    limit_line,
    limits_owner,
    metric_of,
    score_title,
    share_text,
    verdict_word,
    why_slow,
)
from tinytorch.reporting.profile import roofline_section, time_section
from tinytorch.reporting.quantities import UNKNOWN, factor_text, percent_text, seconds_text
from tinytorch.reporting.transforms import gain_text, settings_text, skipped_lines
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BASELINE,
    BETTER,
    KEPT,
    LIMIT_BROKEN,
    OUTCOMES,
    Attempt,
    is_less,
    is_more,
)
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.saving import snippet

__all__ = ["attempts_section", "forest_section", "optimization_page", "trade_offs_section"]


# ---------------------------------------------------------------- everything that was tried: the
# picture, the table, and each attempt with its plans

RECOMMENDED = "★"


def forest_section(optimization: Optimization) -> Section | None:
    """Give the picture of everything that was timed; None where nothing was."""
    plot = forest_plot(optimization)
    if plot is None:
        return None
    about = (
        "The speedup of every attempt that is as good as the baseline, or of which accuracy is "
        "inconclusive, with its interval, the best first. Both were timed in turns; an interval "
        "that holds 1 shows no difference."
    )
    return Section("speedups", "Speedups", forest_picture(plot), about)


def attempts_section(optimization: Optimization) -> Section:
    """Give the table of all attempts, and below it what each one did."""
    rows = optimization.ranked
    if not rows:
        body = element("p", "Nothing was tried.", class_="muted")
        return Section("attempts", "Everything that was tried", body)
    cells = [_cells(optimization, each) for each in rows]
    details = [_details(each) for each in rows]
    about = (
        "Each attempt is a stack of changes to a copy of the model. What is not as good as the "
        "baseline was not timed; where accuracy is inconclusive it was, and is never recommended. "
        f"{RECOMMENDED} is recommended; the numbers here are those by which it was chosen."
    )
    body = joined(
        [table(_columns(optimization), cells), element("h3", "What each one did"), *details]
    )
    return Section("attempts", "Everything that was tried", body, about)


# ---------------------------------------------------------------- the table


def _columns(optimization: Optimization) -> list[Column]:
    return [
        Column("attempt"),
        Column("outcome", about="what came of it; point at a cell for what it means"),
        Column("predicted", "number", "how many times faster it was predicted to be"),
        Column("speedup", "number", "the baseline's time over this one's, with its interval"),
        Column("memory", "number", "peak memory as a share of the baseline's"),
        Column("size", "number", "size of the file as a share of the baseline's"),
        Column(score_title(optimization), "number", f"mean {metric_of(optimization)}"),
        Column("once", "number", "what it needs once, such as compiling; no part of the times"),
        Column("took", "number", "how long trying it took"),
    ]


def _cells(optimization: Optimization, attempt: Attempt) -> list[Cell]:
    measured, found = attempt.measured, attempt.comparison
    gain, tone = optimization.predicted(attempt), TONES[attempt.outcome]
    factor = gain.value if gain else None
    name = attempt.name
    if attempt is optimization.chosen:
        name = f"{RECOMMENDED} {name}"
    accuracy = found.accuracy.candidate_mean if found and found.accuracy else None
    return [
        Cell(name, attempt.name),
        # In one line: the words of an outcome belong together.
        Cell(attempt.outcome.replace(" ", "\u00a0"), tone=tone, title=OUTCOMES[attempt.outcome]),
        Cell(factor_text(factor), factor, title=_basis(gain)),
        Cell(speedup_text(found), found.speedup, tone=tone) if found else Cell(UNKNOWN),
        _share(measured.memory),
        _share(measured.size),
        Cell(accuracy_text(attempt), accuracy),
        Cell(seconds_text(attempt.once_s), attempt.once_s),
        Cell(seconds_text(attempt.seconds), attempt.seconds),
    ]


def _basis(gain: Gain | None) -> str:
    return "" if gain is None else f"{gain_text(gain)}: {gain.basis}"


def _share(share: Estimate | None) -> Cell:
    tone = "good" if is_less(share) else "bad" if is_more(share) else ""
    return Cell(share_text(share), share.value if share else None, tone=tone)


# ---------------------------------------------------------------- one attempt


def _details(attempt: Attempt) -> Markup:
    tone = TONES[attempt.outcome]
    summary = element(
        "summary",
        joined([attempt.name, element("span", attempt.outcome, class_=f"badge {tone}")], " "),
    )
    return element("details", summary, *_paragraphs(attempt), *map(_plan, attempt.plans))


def _paragraphs(attempt: Attempt) -> Iterator[Markup]:
    yield element("p", f"{OUTCOMES[attempt.outcome]}.".capitalize(), class_="muted")
    if attempt.comparison is None:
        if attempt.reason:
            yield element("p", attempt.reason)
    else:
        yield element("p", f"It is {', '.join(attempt_phrases(attempt))}.")
        if attempt.outcome == ACCURACY_INCONCLUSIVE:
            yield element("p", attempt.reason, class_="warn")
        for line in preparation_lines(attempt.comparison):
            yield element("p", line)
        if attempt.comparison.contradiction:
            yield element("p", attempt.comparison.contradiction, class_="warn")
    for note in attempt.notes:
        yield element("p", note, class_="warn")


def _plan(plan: Plan) -> Markup:
    parts = [element("h4", element("code", f"{plan.transform}({settings_text(plan)})"))]
    if plan.steps:
        rows = [
            (each.layers.name or "(the model itself)", str(len(each.layers)), each.what, each.why)
            for each in plan.step_groups
        ]
        columns = (Column("layer"), Column("n", "number"), Column("what"), Column("why"))
        parts.append(table(columns, rows, sortable=False))
    else:
        parts.append(element("p", "Nothing to do: no layer changes."))
    lines = [f"{names}: left alone, {reason}" for names, reason in skipped_lines(plan)]
    lines += [f"note: {note}" for note in plan.notes]
    if lines:
        parts.append(element("ul", *(element("li", line) for line in lines), class_="muted"))
    return element("div", *parts)


# ---------------------------------------------------------------- time against accuracy, memory
# and size: every acceptable attempt a point

TRADE_OFF_ABOUT = (
    "Time, memory and size as shares of the model as it is, accuracy as its change. A full point "
    "is on the front over all four: no other attempt is shown to be as good in everything and "
    "better in something."
)


def trade_offs_section(optimization: Optimization) -> Section | None:
    """Give the pictures and the table of the front; None where nothing was timed."""
    if not any(each.comparison for each in optimization.attempts):
        return None
    body = joined(
        [
            beside(*_pictures(optimization)),
            element("h3", "The front"),
            _front_table(optimization),
        ]
    )
    return Section("trade-offs", "Trade-offs", body, TRADE_OFF_ABOUT)


def _pictures(optimization: Optimization) -> Iterator[Markup]:
    titles = {
        "accuracy": f"change of the {metric_of(optimization)}",
        "memory": "peak memory",
        "size": "size of the file",
    }
    for objective, title in titles.items():
        points = list(_points(optimization, objective))
        if len(points) < 2:
            words = f"No picture of the {title}: it is not known of any attempt."
            yield element("p", words, class_="muted")
            continue
        picture = pareto_plot(
            points,
            x_title="time",
            y_title=title,
            x_text=percent_text,
            y_text=_writer(optimization, objective),
            lower_is_better=(True, objective != "accuracy"),
        )
        yield figure(picture, title=f"{title.capitalize()} against time")


def _points(optimization: Optimization, objective: str) -> Iterator[ParetoPoint]:
    """Give the model as it is and every acceptable attempt that has both numbers."""
    candidates = [(AS_IT_IS, "", BASELINE, "neutral")]
    candidates += [
        (each.name, each.name, each.measured, TONES[each.outcome])
        for each in optimization.ranked
        if each.is_acceptable
    ]
    for shown, name, measured, tone in candidates:
        x, y = measured.time, getattr(measured, objective)
        if x is not None and y is not None:
            yield ParetoPoint(shown, x, y, name in optimization.front, tone)


def _writer(optimization: Optimization, objective: str) -> Callable[[float], str]:
    """Give what writes the values of an axis; changes of scores in the unit of the scores."""
    if objective != "accuracy":
        return percent_text
    compared = [each.comparison for each in optimization.attempts if each.comparison]
    scores = next(each.accuracy for each in compared if each.accuracy)
    return lambda change: difference_text(scores, change)


def _front_table(optimization: Optimization) -> Markup:
    known = {each.name: each for each in optimization.attempts}
    rows = []
    for name in optimization.front:
        measured = known[name].measured if name else BASELINE
        change = accuracy_change(known[name]) if name else UNKNOWN
        shares = [_share_of(each) for each in (measured.time, measured.memory, measured.size)]
        gained = measured.accuracy
        rows.append(
            [Cell(front_name(name)), *shares, Cell(change, gained.value if gained else None)]
        )
    columns = [Column("attempt")]
    titles = ("time", "memory", "size", score_title(optimization))
    columns += [Column(title, "number") for title in titles]
    return table(columns, rows)


def _share_of(share: Estimate | None) -> Cell:
    return Cell(share_text(share), share.value if share else None)


# ---------------------------------------------------------------- the page of an optimization:
# what helps and the proof, everything else below it

LIMIT_TONES = {KEPT: "good", LIMIT_BROKEN: "bad"}
PROFILE_SECTIONS = (time_section, layers_section, roofline_section)
"""What is shown of the profile of the model as it was."""


def optimization_page(optimization: Optimization) -> Page:
    """Make the page of an optimization."""
    found = [
        _limits(optimization),
        forest_section(optimization),
        _why(optimization),
        _advice(optimization),
        attempts_section(optimization),
        _ablation(optimization),
        trade_offs_section(optimization),
        _snippet(optimization),
        *_profile(optimization),
    ]
    raw = optimization.to_dict()
    file_name = "tinytorch-optimization.json"
    notes = every_note(optimization)
    last = appendix(optimization.environment, notes, raw, file_name=file_name)
    return Page(
        title=f"Optimization of {optimization.name}",
        banner=_banner(optimization),
        sections=(*(each for each in found if each is not None), last),
        raw=raw,
        subtitle=f"{optimization.framework} on {optimization.device}, "
        f"goal {optimization.settings.goal}",
    )


# ---------------------------------------------------------------- the verdict


def _banner(optimization: Optimization) -> Banner:
    said = (*beside_lines(optimization), *confirmation_lines(optimization))
    sentence = " ".join([headline(optimization), *said])
    if optimization.was_interrupted:
        sentence += " It was interrupted: this is what was finished before."
    return Banner(
        verdict_word(optimization),
        sentence,
        tuple(_optimization_facts(optimization)),
        _tone(optimization),
    )


def _tone(optimization: Optimization) -> Tone:
    if any(each.verdict == LIMIT_BROKEN for each in optimization.limit_checks):
        return "bad"
    best = optimization.recommended
    if best is None:
        open_ones = optimization.refuted or optimization.inconclusive or optimization.lacked_time
        return "neutral" if optimization.was_judged and not open_ones else "unknown"
    return "good" if best.outcome == BETTER else "neutral"


def _optimization_facts(optimization: Optimization) -> Iterator[tuple[str, str]]:
    """Give what the recommended model needs, before and after, and what finding it took."""
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


# ---------------------------------------------------------------- sections


def _why(optimization: Optimization) -> Section | None:
    sentences = why_slow(optimization)
    if not sentences:
        return None
    body = joined([element("p", each) for each in sentences])
    return Section("why", "Why it takes its time", body, "The model as it was, from its profile.")


def _advice(optimization: Optimization) -> Section | None:
    if not optimization.advice:
        return None
    found = {each.entry: optimization.outcome_of(each) for each in optimization.advice}
    outcomes = {name: attempt for name, attempt in found.items() if attempt is not None}
    return section_from(advice_section(optimization.advice, outcomes))


def _limits(optimization: Optimization) -> Section | None:
    if not optimization.limit_checks:
        return None
    lines = [
        element("li", limit_line(each), class_=LIMIT_TONES.get(each.verdict, "unknown"))
        for each in optimization.limit_checks
    ]
    about = f"What {limits_owner(optimization)} needs, against what was asked for."
    return Section("limits", "Limits", element("ul", *lines), about)


def _ablation(optimization: Optimization) -> Section | None:
    if not optimization.ablation:
        return None
    plot = ablation_plot(optimization)
    missing = [
        element("p", f"{each.part}: {contribution_words(each)}", class_="muted")
        for each in optimization.ablation
        if each.comparison is None
    ]
    body = joined([forest_picture(plot) if plot else Markup(""), *missing])
    about = "The whole stack against the stack without the part, timed in turns."
    return Section("parts", "What each part brings", body, about)


def _snippet(optimization: Optimization) -> Section | None:
    if optimization.recommended is None:
        return None
    try:
        body = element("pre", element("code", snippet(optimization)), tabindex=0)
    except TinyTorchError as error:  # plans that another version kept, for example
        body = element("p", f"There is no program for it: {error}", class_="muted")
    return Section("snippet", "Do it yourself", body, "A program that does it again.")


def _profile(optimization: Optimization) -> list[Section]:
    """Give where the time of the model as it was goes; what was read back has no profile."""
    if optimization.profile is None:
        return []
    return [section_from(make(optimization.profile)) for make in PROFILE_SECTIONS]

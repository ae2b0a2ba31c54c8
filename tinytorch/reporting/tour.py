"""The tour in the terminal: a story in chapters; what is left out of it is in the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.comparison.comparison import Comparison
from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.advice import outcome_words
from tinytorch.reporting.comparison import accuracy_line, measured_rows, speedup_text
from tinytorch.reporting.optimization import named_lines
from tinytorch.reporting.optimization_words import (
    AIMS,
    STYLES,
    TONES,
    accuracy_text,
    attempt_phrases,
    contribution_words,
    counted_outcomes,
    forest_plot,
    headline,
    reason_lines,
    share_text,
    why_slow,
)
from tinytorch.reporting.profile_words import head_rows
from tinytorch.reporting.quantities import (
    Column,
    FittingTable,
    braille_image,
    factor_text,
    seconds_text,
)
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import NOT_TRIED, Attempt, is_less
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.ranking import OBJECTIVE_OF
from tinytorch.tuning.tour import Introduction, SampleDigit, Tour, Visit

__all__ = [
    "FAST",
    "NEXT_COMMANDS",
    "render_ending",
    "render_introduction",
    "render_tour",
    "render_visit",
    "short_line",
    "where_words",
]

WIDEST = 100
INDENT = 3
MOST_ADVICE = 4
"""Suggestions that are shown; the report has all of them."""
INK = 1.2
"""Pixels brighter than this are drawn. Inputs are centred; this is a grey value of about 0.5."""
FAST = 'pip install ".[fast]"'
NEXT_COMMANDS = (
    ("tinytorch optimize yours.py:make --html report.html", "all of this, on your model"),
    ("tinytorch profile yours.py:make", "where its time and memory go"),
    ("tinytorch compare old.py:make new.py:make", "is the new one faster, and as good?"),
)
"""What to type with a model of one's own, and what it answers."""


def render_tour(tour: Tour) -> RenderableType:
    """Lay the whole tour out, top to bottom."""
    visits = [render_visit(place, each) for place, each in enumerate(tour.visits, 1)]
    return Group(render_introduction(tour.introduction), *visits, render_ending(tour))


def _chapter(title: str, *parts: RenderableType) -> RenderableType:
    heading = Text(title, style="bold reverse")
    return Constrain(Group(heading, *parts, Text("")), WIDEST)


def _part(title: str, parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Give a titled part, indented, or nothing where it has nothing to say."""
    found = list(parts)
    if found:
        yield Text("")
        yield Text(title, style="bold")
        yield Padding(Group(*found), (0, 0, 0, INDENT))


# ---------------------------------------------------------------- are they real?


def render_introduction(introduction: Introduction) -> RenderableType:
    """Show what the models do: digits and the CNN's answers, and a text of the GPT."""
    return _chapter(
        "Two trained models of the zoo: are they real?",
        *_part(
            "cnn reads digits that nobody trained on",
            [Columns([_digit(each) for each in introduction.digits], padding=(0, 2))],
        ),
        *_part(
            "gpt writes, one character at a time",
            [
                Text.assemble(
                    (introduction.prompt.strip(), "dim"), " ", introduction.text.strip(), "..."
                )
            ],
        ),
    )


def _digit(digit: SampleDigit) -> RenderableType:
    right = digit.predicted == digit.label
    words = f"a {digit.predicted} ({digit.probability:.0%})"
    verdict = Text(words if right else f"{words}, is a {digit.label}", style="" if right else "red")
    return Group(Text(braille_image(digit.image, INK)), verdict)


# ---------------------------------------------------------------- a stop


def render_visit(place: int, visit: Visit) -> RenderableType:
    """Tell a stop: why it is slow, what was suggested and tried, the proof, what each part brings.

    Notes and everything else are in the report.
    """
    found, stop = visit.optimization, visit.stop
    return _chapter(
        f"{place}. Can {stop.target} be made {AIMS[stop.goal]}?",
        Text(f"It {stop.about}.", "dim"),
        *_part("Why does it take its time?", _why(found)),
        *_part("What does the profile suggest?", _advice(found)),
        *_part("What was tried, against the model as it is", _tried(found)),
        *_part("Did it work?", _proof(found)),
        *_part("What does each part bring?", _ablation(found)),
    )


def _why(found: Optimization) -> Iterator[RenderableType]:
    if found.profile is not None:
        head = head_rows(found.profile, find_facts(found.profile))
        rows = {name: (value, details) for name, value, details in head}
        achieved = ": ".join(filter(None, rows.get("achieved", ())))
        yield Text(f"A call takes {rows['latency'][0]}{achieved and f', at {achieved}'}.")
    yield from (Text(each) for each in why_slow(found))


def _advice(found: Optimization) -> Iterator[RenderableType]:
    """Show the first suggestions, and of those that nothing here carries out the titles."""
    doable = [each for each in found.advice if each.entry]
    lines = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        lines.add_column(overflow="fold")
    for each in doable[:MOST_ADVICE]:
        lines.add_row(Text(each.entry, "cyan"), Text(each.title), Text(_predicted(each), "dim"))
    if doable:
        yield lines
    more = len(doable) - MOST_ADVICE
    others = [each.title for each in found.advice if not each.entry]
    if more > 0:
        yield Text(f"and {more} more", "dim")
    if others:
        yield Text(f"Up to you: {'; '.join(others)}.", "dim")


def _predicted(advice: Advice) -> str:
    if advice.predicted is None:
        return "not predicted"
    most = factor_text(advice.predicted.high)
    return f"{factor_text(advice.predicted.value)}, at most {most}"


def _tried(found: Optimization) -> Iterator[RenderableType]:
    timed = [each for each in found.ranked if each.comparison]
    if timed:
        yield _of_time(found, timed) if _is_about_time(found) else _of_bytes(timed)
    lines = [(x.name, words, x.outcome) for x, words in reason_lines(found)]
    told = [each for each in lines if each[-1] != NOT_TRIED]
    if told:
        yield named_lines((name, Text(words, STYLES[TONES[kind]])) for name, words, kind in told)
    missed = [name for name, _, kind in lines if kind == NOT_TRIED]
    if missed:
        yield Text(f"No time was left for {', '.join(missed)}.", "dim")


def _is_about_time(found: Optimization) -> bool:
    return OBJECTIVE_OF[found.settings.goal] == "time"


def _of_time(found: Optimization, timed: Sequence[Attempt]) -> RenderableType:
    """Draw the speedups, with the score of each beside it."""
    plot = forest_plot(found)
    assert plot is not None, "something was timed"
    widest = max(len(row.text) for row in plot.rows)
    rows = [
        replace(row, text=f"{row.text:<{widest}}  {accuracy_text(each)}")
        for row, each in zip(plot.rows, timed, strict=True)
    ]
    about = f"Speedup with its 95% interval; the last column is the {_metric(timed)}."
    return Group(Text(about, "dim"), replace(plot, rows=rows))


def _of_bytes(timed: Sequence[Attempt]) -> RenderableType:
    """Give a table of what is left of the bytes; time and score stand beside it."""
    found = [each.measured for each in timed]
    return FittingTable(
        "",
        [Text(each.name) for each in timed],
        [
            Column("outcome", [each.outcome for each in timed], 0, "left"),
            Column("file", [share_text(each.size) for each in found]),
            Column("memory", [share_text(each.memory) for each in found], 2),
            Column("speedup", [speedup_text(x.comparison) for x in timed if x.comparison], 1),
            Column(_metric(timed), [accuracy_text(each) for each in timed]),
        ],
        styles=[STYLES[TONES[each.outcome]] for each in timed],
    )


def _metric(timed: Sequence[Attempt]) -> str:
    scores = (each.comparison.accuracy for each in timed if each.comparison)
    return next((each.metric for each in scores if each is not None), "accuracy")


def _proof(found: Optimization) -> Iterator[RenderableType]:
    best = found.recommended
    if best is None or best.comparison is None:
        yield Text(headline(found), STYLES["unknown"])
        yield from (Text(f"Not faster, but smaller: {each}.") for each in _smaller(found))
        return
    words = attempt_phrases(best, found.settings.goal)[0]
    yield Text(f"Yes: {best.name} makes it {words}, n={best.comparison.n} rounds.", "bold green")
    yield _before_and_after(best.comparison)
    if best.comparison.accuracy is not None:
        yield Text(accuracy_line(best.comparison.accuracy))
    predicted = next((x for x in found.advice if (x.entry,) == best.stack and x.predicted), None)
    if predicted is not None:
        yield Text(f"speedup: {outcome_words(predicted, best)}", "dim")


def _before_and_after(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("")
    for title in ("as it was", "now", "now / as it was"):
        table.add_column(title, justify="right")
    for row in measured_rows(comparison):
        table.add_row(*row)
    return table


def _smaller(found: Optimization) -> Iterator[str]:
    """Name what is smallest, if anything is smaller and as good."""
    sizes = [
        (size.value, each)
        for each in found.attempts
        if each.is_acceptable and (size := each.measured.size) is not None and is_less(size)
    ]
    if sizes:
        smallest = min(sizes, key=lambda pair: pair[0])[1]
        yield f"{smallest.name} is {', '.join(attempt_phrases(smallest, 'size'))}"


def _ablation(found: Optimization) -> Iterator[RenderableType]:
    if found.ablation:
        yield named_lines((each.part, Text(contribution_words(each))) for each in found.ablation)
        yield Text("Speedup of the whole stack against the stack without the part.", "dim")


# ---------------------------------------------------------------- the end


def render_ending(tour: Tour) -> RenderableType:
    """Sum the tour up, and say how to go on."""
    return _chapter(
        "In short",
        named_lines(
            (each.stop.target, Text(short_line(each.optimization), _style(each.optimization)))
            for each in tour.visits
        ),
        Text(where_words(tour), "dim"),
        *_interrupted(tour),
        *_fast(tour),
        *_part("Now with your own model", [_commands()]),
    )


def short_line(found: Optimization) -> str:
    """Say what came of a model in a line: ``1.63x faster (1.56x to 1.70x) by int8-dynamic``."""
    best, goal = found.recommended, found.settings.goal
    if best is None or best.comparison is None:
        return f"nothing that was tried is shown to make it {AIMS[goal]}"
    first, *others = attempt_phrases(best, goal)
    return ", ".join([f"{first} by {best.name}", *others])


def where_words(tour: Tour) -> str:
    """Say what all of it took, and on what it ran."""
    attempts = counted_outcomes(tour.attempts) if tour.attempts else "no attempts"
    environment = tour.visits[0].optimization.environment if tour.visits else {}
    cores = environment.get("usable_cores")
    on = "" if cores is None else f" on {cores} core{'s' if cores != 1 else ''}"
    return f"{attempts}; {seconds_text(tour.seconds)}{on}, backend {tour.backend}"


def _style(found: Optimization) -> str:
    return STYLES["good" if found.recommended else "unknown"]


def _interrupted(tour: Tour) -> Iterator[Text]:
    if tour.was_interrupted:
        yield Text("Interrupted: this is what was finished before.", "yellow")


def _fast(tour: Tour) -> Iterator[Text]:
    if not tour.has_compiled_kernels:
        yield Text("")
        yield Text.assemble(
            "This was NumPy alone. Compiled kernels, also for 8-bit integers, come with ",
            (FAST, "bold"),
            "; what they bring here was not measured: take the tour again then.",
        )


def _commands() -> Table:
    return named_lines((f"$ {command}", Text(about, "dim")) for command, about in NEXT_COMMANDS)

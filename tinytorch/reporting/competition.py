"""The competition in the terminal: what a judge saw, findings with their fixes, and boards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.competition.judgement import Judgement
from tinytorch.competition.rules import Finding
from tinytorch.reporting.competition_board import print_board, show_board
from tinytorch.reporting.competition_words import (
    VERDICT_STYLES,
    ablation_rows,
    finding_lines,
    headline,
    measure_plot,
    measure_rows,
    missing_lines,
    plain,
    run_facts,
    score_text,
)
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.optimization import named_lines
from tinytorch.reporting.quality_lines import accuracy_line

__all__ = ["print_board", "show_board", "show_findings", "show_judgement"]


def show_judgement(judgement: Judgement) -> RenderableType:
    """Lay out what one run before the judge gave, top to bottom: the verdict first."""
    words, style = headline(judgement)
    return Group(
        Text(words, style=style),
        *_section("Findings", _findings(judgement.findings)),
        *_section("Against the reference", _measures(judgement)),
        *_accuracy(judgement),
        *_section("What each technique contributes", _ablations(judgement)),
        *_section("The run", [named_lines((k, Text(v)) for k, v in run_facts(judgement))]),
        *_section("Not measured", _dashes(missing_lines(judgement))),
        *_section("Notes", _dashes(map(plain, judgement.notes), "yellow")),
    )


def show_findings(findings: Sequence[Finding]) -> RenderableType:
    """Lay out findings with the names of their rules and what to do; also says when all is well."""
    if not findings:
        return Text("Nothing was found against the rules.", style="green")
    fatal = sum(each.is_fatal for each in findings)
    parts = [_counted(fatal, "finding that counts", "findings that count")] if fatal else []
    if len(findings) > fatal:
        parts.append(_counted(len(findings) - fatal, "warning", "warnings"))
    style = "bold red" if fatal else "bold yellow"
    return Group(Text(", ".join(parts), style=style), *_findings(findings))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _section(title: str, parts: Iterable[RenderableType]) -> list[RenderableType]:
    found = list(parts)
    return [Text(""), Text(title, style="bold"), *found] if found else []


def _dashes(lines: Iterable[str], style: str = "") -> list[Text]:
    return [Text(f"- {line}", style=style) for line in lines]


def _findings(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        return
    rows = []
    for each in sorted(findings, key=lambda found: (not found.is_fatal, found.rule)):
        rule, seen, fix = finding_lines(each)
        rows.append((rule, Text(seen, style="red" if each.is_fatal else "yellow")))
        rows.append(("", Text(f"to do: {fix}", style="dim")))
    yield named_lines(rows)


def _measures(judgement: Judgement) -> Iterator[RenderableType]:
    picture = measure_plot(judgement)
    if picture is not None:
        yield picture
    rows = measure_rows(judgement)
    if judgement.heats:
        yield Text("")
        yield FittingTable(
            "median of the heats",
            [Text(row[0]) for row in rows],
            [
                Column("reference", [row[1] for row in rows]),
                Column("entry", [row[2] for row in rows]),
                Column("what it is", [row[4] for row in rows], 1, "left"),
            ],
            label_least=12,
        )


def _accuracy(judgement: Judgement) -> Iterator[RenderableType]:
    if judgement.accuracy is not None:
        yield Text("")
        yield Text(accuracy_line(judgement.accuracy))


def _ablations(judgement: Judgement) -> Iterator[RenderableType]:
    rows = ablation_rows(judgement)
    if rows:
        yield Text("The whole entry against the entry without it, in heats of their own.", "dim")
        yield FittingTable(
            "technique",
            [Text(name) for name, _, _ in rows],
            [
                Column("contributes", [score_text(score) for _, score, _ in rows]),
                Column("notes", [said for _, _, said in rows], 1, "left", least=16),
            ],
            [VERDICT_STYLES[score.verdict] if score else "yellow" for _, score, _ in rows],
            label_least=12,
        )

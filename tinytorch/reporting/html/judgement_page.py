"""One run before the judge as a page: the verdict, the measures, the techniques, the findings."""

from __future__ import annotations

from tinytorch.competition.judgement import Heat, Judgement
from tinytorch.reporting.competition_words import (
    NOT_AFFILIATED,
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
from tinytorch.reporting.html.appendix import appendix
from tinytorch.reporting.html.figures import figure
from tinytorch.reporting.html.forest import TONES, forest_picture
from tinytorch.reporting.html.markup import Markup, element, joined, listed
from tinytorch.reporting.html.page import Banner, Page, Section
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.quality_lines import accuracy_line

__all__ = ["judgement_page"]

FACTS = ("team", "techniques", "heats", "round")


def judgement_page(judgement: Judgement) -> Page:
    """Give the page of one run."""
    raw = _raw(judgement)
    notes = [plain(note) for note in judgement.notes]
    sections = [
        _findings(judgement),
        _measures(judgement),
        _ablations(judgement),
        _run(judgement),
        appendix(judgement.system, notes, raw, file_name="tinytorch-judgement.json"),
    ]
    return Page(
        f"{judgement.event.title}: {plain(judgement.entry.team)}",
        _banner(judgement),
        tuple(each for each in sections if each is not None),
        raw,
        NOT_AFFILIATED,
    )


def _banner(judgement: Judgement) -> Banner:
    words, style = headline(judgement)
    accuracy = "" if judgement.accuracy is None else accuracy_line(judgement.accuracy)
    known = dict(run_facts(judgement))
    facts = tuple((name, known[name]) for name in FACTS)
    tone = TONES[style.rpartition(" ")[2]]
    return Banner(words, accuracy, facts, tone)  # type: ignore[arg-type]


def _findings(judgement: Judgement) -> Section | None:
    if not judgement.findings:
        return None
    ordered = sorted(judgement.findings, key=lambda each: (not each.is_fatal, each.rule))
    rows: list[list[Cell | str]] = []
    for each in ordered:
        rule, seen, fix = finding_lines(each)
        tone = "bad" if each.is_fatal else "unknown"
        rows.append([Cell(rule, tone=tone), Cell(each.severity, tone=tone), seen, fix])
    columns = [Column("rule"), Column("severity"), Column("what was seen"), Column("what to do")]
    return Section("findings", "Findings", table(columns, rows, sortable=False))


def _measures(judgement: Judgement) -> Section | None:
    plot = measure_plot(judgement)
    parts: list[Markup] = []
    if plot is not None:
        about = "How many times better than the reference, with a 95% interval over heats."
        parts.append(figure(forest_picture(plot), title="Score of each measure.", about=about))
    names = ("measure", "reference", "entry", "score", "what it is")
    kinds = {"reference": "number", "entry": "number", "score": "number"}
    columns = [Column(name, kinds.get(name, "text")) for name in names]  # type: ignore[arg-type]
    rows = measure_rows(judgement)
    parts.append(table(columns, rows, caption="median of the heats", sortable=False))
    missing = missing_lines(judgement)
    if missing:
        parts += [element("h3", "Not measured"), listed(missing)]
    return Section("measures", "Against the reference", joined(parts))


def _ablations(judgement: Judgement) -> Section | None:
    rows: list[list[Cell | str]] = [
        [
            name,
            Cell(score_text(score), score.value if score else None),
            Cell(said, tone=TONES[VERDICT_STYLES[score.verdict]] if score else "unknown"),
        ]
        for name, score, said in ablation_rows(judgement)
    ]
    if not rows:
        return None
    columns = [Column("technique"), Column("contributes", "number"), Column("notes")]
    about = "The whole entry against the entry without it, in heats of their own."
    return Section("techniques", "What each technique contributes", table(columns, rows), about)


def _run(judgement: Judgement) -> Section:
    columns = [Column("what"), Column("value")]
    return Section("run", "The run", table(columns, run_facts(judgement), sortable=False))


def _raw(judgement: Judgement) -> dict[str, object]:
    entry = judgement.entry
    return {
        "team": entry.team,
        "event": entry.event,
        "division": entry.division,
        "tier": entry.tier,
        "entry_sha256": entry.sha256,
        "created_at": judgement.created_at,
        "heats": [_heat(each) for each in judgement.heats],
        "ablations": [
            {
                "technique": each.technique,
                "reason": each.reason,
                "heats": list(map(_heat, each.heats)),
            }
            for each in judgement.ablations
        ],
        "findings": [
            {"rule": each.rule, "seen": each.seen, "severity": each.severity}
            for each in judgement.findings
        ],
    }


def _heat(heat: Heat) -> dict[str, object]:
    return {"reference": dict(heat.reference), "entry": dict(heat.entry)}

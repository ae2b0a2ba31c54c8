"""What a gate has found: in the terminal, as Markdown for a pull request, as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.records.gate_result import (
    ACCURACY,
    FAILED,
    INVALID,
    NEW,
    PASSED,
    REGRESSION,
    GateResult,
    TargetResult,
)
from tinytorch.reporting.markdown import Alignment, code, escaped, table_rows
from tinytorch.reporting.quantities import UNKNOWN, Column, FittingTable, seconds_text

__all__ = [
    "gate_annotations",
    "gate_junit",
    "gate_line",
    "gate_markdown",
    "render_gate",
]

STYLES = {
    FAILED: "bold red",
    REGRESSION: "bold red",
    ACCURACY: "bold red",
    INVALID: "red",
    INCONCLUSIVE: "yellow",
    PASSED: "green",
    NEW: "cyan",
}
TITLES = {
    FAILED: "The gate fails: a target does not work any more",
    REGRESSION: "The gate fails: slower than the tolerance allows",
    ACCURACY: "The gate fails: accuracy is lost",
    INVALID: "The measurement is not to be trusted",
    INCONCLUSIVE: "Inconclusive: there is not enough evidence to pass",
    PASSED: "The gate passes",
    NEW: "Nothing was compared: all targets are new",
}
MARKS = {
    FAILED: "❌",
    REGRESSION: "❌",
    ACCURACY: "❌",
    INVALID: "⚠️",
    INCONCLUSIVE: "❔",
    PASSED: "✅",
    NEW: "🆕",
}
GATE_HEADS = (
    "",
    "target",
    "verdict",
    "time ratio (95% interval)",
    "tolerance",
    "accuracy",
    "n",
)
GATE_ALIGNMENTS: tuple[Alignment, ...] = ("left", "left", "left", "left", "right", "left", "right")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Letters that XML cannot hold, escaped or not."""
SUITE = "tinytorch gate"


# ---------------------------------------------------------------- terminal


def render_gate(result: GateResult) -> RenderableType:
    """Lay out the verdicts with their evidence, and below it the reasons and doubts."""
    rows = result.results
    table = FittingTable(
        "target",
        [Text(row.target) for row in rows],
        [
            Column("verdict", [_verdict_text(row) for row in rows], 0, "left"),
            Column("time ratio", [_ratio_text(row) for row in rows]),
            Column("tolerance", [f"{row.tolerance:.1%}" for row in rows], 4),
            Column("accuracy", [_accuracy_text(row) for row in rows], 2, "left"),
            Column("n", [_count_text(row) for row in rows], 3),
            Column("seconds", [seconds_text(row.seconds_used) for row in rows], 5),
        ],
        styles=[STYLES[row.verdict] for row in rows],
        label_least=16,
    )
    title = Text(f"{TITLES[result.verdict]} ({result.summary})", style=STYLES[result.verdict])
    return Group(
        Text(f"{result.candidate} against {result.baseline}", style="dim"),
        Text(""),
        table,
        Text(""),
        *(Text(line) for row in rows for line in _detail_lines(row)),
        *(Text(f"- {note}", style="yellow") for note in result.notes),
        title,
    )


def gate_line(row: TargetResult) -> str:
    """Say in one line what was found about a target."""
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.target}: {row.verdict}{reason}"


def _detail_lines(row: TargetResult) -> Iterator[str]:
    """Give the reason where the table does not say it, what differs, and doubts."""
    if row.verdict != PASSED:
        yield gate_line(row)
    for note in (row.outputs, *row.notes):
        if note:
            yield f"{row.target}: {note}"


def _verdict_text(row: TargetResult) -> str:
    return f"{row.verdict}, {row.change}" if row.verdict == PASSED and row.change else row.verdict


def _ratio_text(row: TargetResult) -> str:
    if row.ratio is None:
        return UNKNOWN
    return f"{row.ratio.value:.3f} ({row.ratio.low:.3f} to {row.ratio.high:.3f})"


def _accuracy_text(row: TargetResult) -> str:
    if row.accuracy is None:
        return UNKNOWN
    words = {PASSED: "not worse", ACCURACY: "worse", INCONCLUSIVE: "inconclusive"}
    return f"{words[row.accuracy_verdict]} ({row.accuracy.difference:+.2g})"


def _count_text(row: TargetResult) -> str:
    return UNKNOWN if row.n is None else str(row.n)


# ---------------------------------------------------------------- Markdown


def gate_markdown(result: GateResult) -> str:
    """Write a summary for a pull request: the table open, details folded."""
    lines = [
        f"### {MARKS[result.verdict]} {TITLES[result.verdict]}",
        "",
        f"{escaped(result.candidate)} against {escaped(result.baseline)}: {result.summary}.",
        "",
        *table_rows(GATE_HEADS, map(_markdown_row, result.results), alignments=GATE_ALIGNMENTS),
    ]
    lines += [
        "",
        "The ratio is the candidate's time over the baseline's: above 1 is slower.",
        "",
        "<details><summary>Details</summary>",
        "",
    ]
    for row in result.results:
        reasons = [row.reason, row.outputs, *row.notes]
        record = [f"record {row.record[:12]}"] if row.record else []
        lines.append(f"- {code(row.target)} ({row.verdict}, {seconds_text(row.seconds_used)})")
        lines += [f"  - {escaped(each)}" for each in (*reasons, *record) if each]
    lines += [f"- {escaped(note)}" for note in result.notes]
    return "\n".join([*lines, "", "</details>", ""])


def _markdown_row(row: TargetResult) -> tuple[str, ...]:
    return (
        MARKS[row.verdict],
        code(row.target),
        _verdict_text(row),
        _ratio_text(row),
        f"{row.tolerance:.1%}",
        _accuracy_text(row),
        _count_text(row),
    )


# ---------------------------------------------------------------- JUnit


def gate_junit(result: GateResult) -> str:
    """Write JUnit XML: one test case per target; what is inconclusive counts as skipped."""
    counts = {
        "tests": len(result.results),
        "failures": len(result.having(FAILED, REGRESSION, ACCURACY)),
        "errors": len(result.having(INVALID)),
        "skipped": len(result.having(INCONCLUSIVE, NEW)),
    }
    totals = {name: str(count) for name, count in counts.items()}
    totals["time"] = f"{result.seconds_used:.3f}"
    root = ElementTree.Element("testsuites", {"name": SUITE, **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **totals})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("baseline", result.baseline), ("candidate", result.candidate)):
        ElementTree.SubElement(properties, "property", name=name, value=_xml_text(value))
    for row in result.results:
        _add_case(suite, row)
    if result.notes:
        notes = ElementTree.SubElement(suite, "system-out")
        notes.text = _xml_text("\n".join(result.notes))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _add_case(suite: ElementTree.Element, row: TargetResult) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname="tinytorch.gate",
        name=_xml_text(row.target),
        time=f"{row.seconds_used:.3f}",
    )
    message = _xml_text(gate_line(row))
    if row.verdict in (FAILED, REGRESSION, ACCURACY):
        ElementTree.SubElement(case, "failure", message=message, type=row.verdict)
    elif row.verdict == INVALID:
        ElementTree.SubElement(case, "error", message=message, type=row.verdict)
    elif row.verdict in (INCONCLUSIVE, NEW):
        ElementTree.SubElement(case, "skipped", message=message)
    said = [_ratio_text(row), row.reason, row.outputs, *row.notes]
    out = ElementTree.SubElement(case, "system-out")
    out.text = _xml_text("\n".join(line for line in said if line))


def _xml_text(text: str) -> str:
    return NOT_XML.sub("?", text)


# ---------------------------------------------------------------- GitHub Actions


def gate_annotations(result: GateResult) -> list[str]:
    """Give the lines that GitHub Actions shows beside the code of a pull request."""
    lines = []
    for row in result.having(FAILED, REGRESSION, ACCURACY, INVALID, INCONCLUSIVE):
        level = "warning" if row.verdict == INCONCLUSIVE else "error"
        file = row.target.rpartition(":")[0]
        place = f"file={_property(file)}," if file.endswith(".py") else ""
        title = _property(f"tinytorch gate: {row.verdict}")
        lines.append(f"::{level} {place}title={title}::{_message(gate_line(row))}")
    return lines


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")

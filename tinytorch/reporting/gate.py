"""What a gate has found: its document, JUnit XML, and annotations of a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

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
from tinytorch.reporting.document import (
    Banner,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Folded,
    Item,
    Only,
    Paragraph,
    Row,
    Table,
    Tone,
)
from tinytorch.reporting.quantities import UNKNOWN, seconds_text

__all__ = [
    "gate_annotations",
    "gate_document",
    "gate_junit",
    "gate_line",
]

TONES: dict[str, Tone] = {
    FAILED: "bad",
    REGRESSION: "bad",
    ACCURACY: "bad",
    INVALID: "warning",
    INCONCLUSIVE: "unknown",
    PASSED: "good",
    NEW: "neutral",
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
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Letters that XML cannot hold, escaped or not."""
SUITE = "tinytorch gate"


# ---------------------------------------------------------------- the document


def gate_document(result: GateResult) -> Document:
    """Return the verdicts with their evidence, and below it the reasons and doubts."""
    columns = [
        Column("target", "code", least=16),
        Column("verdict"),
        Column("time ratio (95% interval)", "number", "candidate over baseline: above 1 is slower"),
        Column("tolerance", "number", rank=4),
        Column("accuracy", rank=2),
        Column("n", "number", rank=3),
        Column("seconds", "number", rank=5),
    ]
    reasons = [line for row in result.results for line in _detail_lines(row)]
    return Document(
        f"{result.candidate} against {result.baseline}",
        Banner(TITLES[result.verdict], result.summary, tone=TONES[result.verdict]),
        (
            Table(columns, [_row(row) for row in result.results]),
            Paragraph("The ratio is the candidate's time over the baseline's: above 1 is slower."),
            Only(("terminal",), (Bullets(reasons),)),
            Folded("Details", (Bullets([_details(row) for row in result.results]),)),
        ),
        result.notes,
    )


def _row(row: TargetResult) -> Row:
    cells = (
        row.target,
        Cell(_verdict_text(row), tone=TONES[row.verdict]),
        Cell(_ratio_text(row), None if row.ratio is None else row.ratio.value),
        Cell(f"{row.tolerance:.1%}", row.tolerance),
        _accuracy_text(row),
        Cell(_count_text(row), row.n),
        Cell(seconds_text(row.seconds_used), row.seconds_used),
    )
    return Row(cells, tone=TONES[row.verdict])


def _details(row: TargetResult) -> Item:
    record = f"record {row.record[:12]}" if row.record else ""
    below = [each for each in (row.reason, row.outputs, *row.notes, record) if each]
    head = (Code(row.target), f" ({row.verdict}, {seconds_text(row.seconds_used)})")
    return Item(head, below)


def gate_line(row: TargetResult) -> str:
    """Say in one line what was found about a target."""
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.target}: {row.verdict}{reason}"


def _detail_lines(row: TargetResult) -> Iterator[str]:
    """Return the reason where the table does not say it, what differs, and doubts."""
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
    """Return the lines that GitHub Actions shows beside the code of a pull request."""
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

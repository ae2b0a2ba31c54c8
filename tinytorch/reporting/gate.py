"""What a gate has found: its document, JUnit XML, and annotations of a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.records.alarms import Confirmations, Suspicion
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
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import UNKNOWN, seconds_text

TONES: dict[str, doc.Tone] = {
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


def gate_document(result: GateResult) -> doc.Document:
    """Return the verdicts with their evidence, and below it the reasons and doubts."""
    table = _verdicts(result)
    open_ones = [gate_line(row) for row in result.results if row.verdict not in (PASSED, NEW)]
    reasons = [line for row in result.results for line in _detail_lines(row)]
    return doc.Document(
        f"{result.candidate} against {result.baseline}",
        doc.Banner(TITLES[result.verdict], result.summary, tone=TONES[result.verdict]),
        (
            table,
            doc.Paragraph(
                "The ratio is the candidate's time over the baseline's: above 1 is slower."
            ),
            doc.Only(("terminal",), (doc.Bullets(reasons),)),
            doc.Folded("Details", (doc.Bullets([_details(row) for row in result.results]),)),
        ),
        result.notes,
        brief=(table, doc.Bullets(open_ones)),
    )


def _verdicts(result: GateResult) -> doc.Table:
    return doc.table_of(
        result.results,
        doc.column("target", lambda row: row.target, "code", least=16),
        doc.column("verdict", lambda row: doc.Cell(_verdict_text(row), tone=TONES[row.verdict])),
        doc.column(
            "time ratio (95% interval)",
            _ratio_cell,
            "number",
            "candidate over baseline: above 1 is slower",
        ),
        doc.number("tolerance", lambda row: row.tolerance, "{:.1%}".format, rank=4),
        doc.column("accuracy", _accuracy_text, rank=2),
        doc.number("n", lambda row: row.n, str, rank=3),
        doc.number("seconds", lambda row: row.seconds_used, seconds_text, rank=5),
        tone=lambda row: TONES[row.verdict],
    )


def _ratio_cell(row: TargetResult) -> doc.Cell:
    return doc.Cell(_ratio_text(row), None if row.ratio is None else row.ratio.value)


def _details(row: TargetResult) -> doc.Item:
    record = f"record {row.record[:12]}" if row.record else ""
    below = [each for each in (row.reason, row.outputs, *row.notes, record) if each]
    head = (doc.Code(row.target), f" ({row.verdict}, {seconds_text(row.seconds_used)})")
    return doc.Item(head, below)


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


# ---------------------------------------------------------------- suspicions, measured again

CONFIRMED, NOT_CONFIRMED = "confirmed", "not confirmed"
SHORT_COMMIT = 10


def confirmations_document(found: Confirmations) -> doc.Document:
    """Return what the history made suspicious, and what measuring it again has shown."""
    pairs = list(zip(found.suspicions, found.results, strict=True))
    details = [_confirmation_details(suspicion, result) for suspicion, result in pairs]
    verdict, title = found.verdict, CONFIRMATION_TITLES.get(found.verdict)
    table = [_confirmations(pairs)] if pairs else []
    note = (
        f"Looked for a slowdown of {found.effect:.1%} in {', '.join(found.targets)}. A suspicion "
        "is confirmed when the whole interval of the ratio, of both commits measured in turns, "
        f"lies above {1 + found.effect / 2:.3f}."
    )
    return doc.Document(
        "Alarms of the history",
        doc.Banner(title or TITLES[verdict], found.summary, tone=TONES[verdict]),
        (
            *table,
            doc.Paragraph(note),
            *([doc.Folded("Details", (doc.Bullets(details),))] * bool(pairs)),
        ),
        found.notes,
        raw=found.to_dict(),
        file_name="tinytorch-alarms.json",
        brief=(*table, doc.Paragraph(note)),
    )


CONFIRMATION_TITLES = {
    REGRESSION: "Confirmed: slower than before",
    PASSED: "No confirmed slowdown",
    INCONCLUSIVE: "Inconclusive: a suspicion is neither confirmed nor refuted",
}


def _confirmations(pairs: Sequence[tuple[Suspicion, TargetResult]]) -> doc.Table:
    def words(pair: tuple[Suspicion, TargetResult]) -> doc.Cell:
        verdict = pair[1].verdict
        said = {REGRESSION: CONFIRMED, PASSED: NOT_CONFIRMED}.get(verdict, verdict)
        return doc.Cell(said, tone=TONES[verdict])

    def shift(pair: tuple[Suspicion, TargetResult]) -> doc.Cell:
        return doc.Cell(f"{pair[0].ratio - 1:+.1%} ({pair[0].reason})", pair[0].ratio)

    newest, seen = "the newest commit over the one before", "the shift that made it suspicious"
    return doc.table_of(
        pairs,
        doc.column("target", lambda pair: pair[0].target, "code", least=16),
        doc.column("measured again", words),
        doc.column("time ratio (95% interval)", lambda x: _ratio_cell(x[1]), "number", newest),
        doc.column("in the history", shift, "number", seen, rank=2),
        doc.column("before", lambda pair: pair[0].before[:SHORT_COMMIT], "code", rank=1),
        doc.column("after", lambda pair: pair[0].after[:SHORT_COMMIT], "code", rank=1),
        doc.number(
            "commits", lambda pair: len(pair[0].commits), str, "those after the one before", rank=3
        ),
        doc.number("n", lambda pair: pair[1].n, str, rank=4),
        tone=lambda pair: TONES[pair[1].verdict],
    )


def _confirmation_details(suspicion: Suspicion, result: TargetResult) -> doc.Item:
    commits = ", ".join(each[:SHORT_COMMIT] for each in suspicion.commits)
    item = _details(result)
    return doc.Item(
        item.words, (f"commits since {suspicion.before[:SHORT_COMMIT]}: {commits}", *item.below)
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

from xml.etree import ElementTree

import pytest
from example_gates import GOLDEN, every_verdict, timed
from hypothesis import given
from hypothesis import strategies as st
from project_files import ROOT
from terminal import shown

from tinytorch.records.gate_result import GateResult, TargetResult
from tinytorch.reporting.gate import gate_annotations, gate_document, gate_junit, gate_line
from tinytorch.reporting.markdown import write
from tinytorch.reporting.terminal import render


def test_the_table_has_the_evidence():
    text = shown(render(gate_document(every_verdict())), width=140)
    assert "1.500 (1.4" in text
    assert "passed, faster" in text
    assert "worse (-0.5)" in text
    assert "much noise here" in text
    assert "1 failed, 1 regression" in text.splitlines()[1]


def test_a_narrow_terminal_keeps_verdict_and_ratio():
    text = shown(render(gate_document(every_verdict())), width=70)
    assert "regression" in text
    assert "1.500" in text


def test_a_gate_that_passes_says_so_in_the_first_line():
    text = shown(render(gate_document(GateResult("main", "here", (timed(),)))))
    assert text.splitlines()[:2] == ["The gate passes", "1 passed"]


def test_the_markdown_is_that_of_the_golden_file():
    """Rebuild it with ``PYTHONPATH=. python tests/example_gates.py``, and look at it."""
    assert write(gate_document(every_verdict())) == GOLDEN.read_text("utf-8")


def test_markdown_cannot_be_broken_by_a_message():
    row = TargetResult("a|b`c", 0.05, candidate_error="<b>\n| x | `y` @team #1")
    lines = write(gate_document(GateResult("a|b", "c", (row,)))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 3
    assert r"`a\|b'c`" in table[2]
    assert any(r"&lt;b&gt; \| x \| \`y\` \@team \#1" in line for line in lines)


def parsed(gate):
    return ElementTree.fromstring(gate_junit(gate))


def test_junit_has_a_case_for_each_target_and_counts_them():
    root = parsed(every_verdict())
    (suite,) = root
    cases = suite.findall("testcase")
    assert root.tag == "testsuites"
    assert suite.tag == "testsuite"
    counted = {
        "tests": len(cases),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    assert counted == {"tests": 7, "failures": 3, "errors": 1, "skipped": 2}
    for place in (root, suite):
        assert {name: int(place.get(name)) for name in counted} == counted
    assert [case.get("name") for case in cases][1] == "bench.py:slower"
    assert all(case.get("classname") and float(case.get("time")) >= 0 for case in cases)
    assert all(child.get("message") for child in suite.findall("testcase/*[@message]"))


def test_junit_keeps_the_order_that_its_schema_asks_for():
    (suite,) = parsed(every_verdict())
    assert [child.tag for child in suite] == ["properties", *["testcase"] * 7, "system-out"]
    allowed = {"failure", "error", "skipped", "system-out"}
    for case in suite.findall("testcase"):
        tags = [child.tag for child in case]
        assert set(tags) <= allowed
        assert tags[-1] == "system-out"
        assert len(tags) <= 2


@given(st.text(min_size=1))
def test_any_message_gives_xml_that_can_be_read(text):
    gate = GateResult(text, text, (TargetResult(text, 0.05, candidate_error=text),), (text,))
    assert parsed(gate)[0].find("testcase/failure") is not None


def test_annotations_name_the_file_and_stay_in_their_line():
    lines = gate_annotations(every_verdict())
    assert len(lines) == 5
    assert lines[0].startswith("::error title=tinytorch gate%3A failed::failed: failed: ")
    assert "%0A" in lines[0]
    assert lines[1].startswith("::error file=bench.py,title=")
    assert "+50.0%25 time" in lines[1]
    assert lines[4].startswith("::warning title=tinytorch gate%3A inconclusive::doubtful")
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("row", every_verdict().results, ids=lambda row: row.verdict)
def test_a_line_says_target_and_verdict(row):
    assert gate_line(row).startswith(f"{row.target}: {row.verdict}")


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_page_shows_the_ready_files_as_they_are(name):
    page = (ROOT / "docs" / "gate.md").read_text("utf-8")
    assert (ROOT / "docs" / "ci" / name).read_text("utf-8") in page

"""What is shown of a sweep."""

import pytest
from document_reading import blocks, section
from example_outcomes import offline, outcome, single_stream

from tinytorch.benchmarking.sweep import SweepResult
from tinytorch.measure.executor import SlotReport
from tinytorch.reporting.document import Table
from tinytorch.reporting.quantities import UNKNOWN, percent_text
from tinytorch.reporting.sweep import sweep_document, sweep_fields

SLOT = {"slot": {"name": "here", "is_disturbed": False}}
DISTURBED = {"slot": {"name": "here", "is_disturbed": True}}
FAILURE = {**SLOT, "failure": "no memory"}


def result(machines, *, trials=2, **changes):
    return SweepResult("tiny", "run", trials, machines, **changes)


@pytest.mark.parametrize(
    ("machines", "trials", "is_shared", "tone"),
    [
        ({"a": (single_stream(details=SLOT), offline(details=DISTURBED))}, 2, False, "neutral"),
        ({"a": (single_stream(details=SLOT), outcome(details=FAILURE))}, 2, False, "bad"),
        ({"a": (single_stream(details=SLOT),)}, 2, False, "unknown"),
        ({"a": (single_stream(details=SLOT),), "b": (offline(details=SLOT),)}, 2, True, "neutral"),
        ({"a": (single_stream(details=SLOT),), "b": (offline(details=SLOT),)}, 2, False, "unknown"),
        ({}, 2, False, "unknown"),
    ],
)
def test_the_verdict_is_of_all_trials_on_all_machines(machines, trials, is_shared, tone):
    found = result(machines, trials=trials, is_shared=is_shared)
    banner = sweep_document(found).banner
    assert banner.tone == tone
    facts = dict(banner.facts)
    outcomes = [each for some in machines.values() for each in some]
    assert facts["results"] == str(len(outcomes))
    assert facts["failed"] == str(sum(each.failure is not None for each in outcomes))
    disturbed = [each.record.details["slot"]["is_disturbed"] for each in outcomes]
    assert facts["disturbed"] == str(sum(disturbed))


def test_each_kind_of_machine_has_a_section_with_anchors_of_its_own():
    document = sweep_document(
        result({"a" * 16: (single_stream(details=SLOT),), "b" * 16: (offline(details=SLOT),)})
    )
    first, second = (section(document, f"machine-{n}") for n in (1, 2))
    assert (first.title, second.title) == ("Machine aaaaaaaa", "Machine bbbbbbbb")
    for number, part in enumerate((first, second), start=1):
        assert all(each.anchor.endswith(f"-{number}") for each in part.blocks)
        assert "1 trial not measured yet" in part.about
    assert [each.about for each in document.brief] == ["", ""]
    assert not any(getattr(each, "anchor", "") == "slots" for each in document.blocks)


def test_slots_are_rows_and_what_is_unknown_is_marked():
    slots = (
        SlotReport("one", "here", (0, 1), {"fingerprint": "c0ffee5eed"}, 0.02, 1, 20, 0.25),
        SlotReport("two", "there", (), obstacle="it did not answer"),
    )
    (table,) = blocks(section(sweep_document(result({}, slots=slots)), "slots"), Table)
    rows = [[cell.text for cell in row.cells] for row in table.filled()[1]]
    assert rows[0][:2] == ["one", "c0ffee5e"]
    assert rows[0][2:] == ["2", percent_text(0.02), "1 of 20", "0.25", ""]
    assert rows[1] == ["two", UNKNOWN, "0", UNKNOWN, UNKNOWN, UNKNOWN, "it did not answer"]


def test_the_raw_result_has_the_slot_of_each_trial():
    fields = sweep_fields(result({"a": (single_stream(details=DISTURBED),)}, notes=("a doubt",)))
    assert fields["machines"]["a"][0]["slot"] == DISTURBED["slot"]
    assert (fields["failed"], fields["is_complete"], fields["notes"]) == (0, False, ["a doubt"])

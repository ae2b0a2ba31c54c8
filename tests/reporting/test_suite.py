import pytest
from document_reading import anchors, blocks, heads, rows, section, words
from example_outcomes import ACCURACY, SERVER, offline, outcome, server, single_stream
from example_pages import HOSTILE
from terminal import shown

from tinytorch.benchmarking.suite_file import Suite, SuiteWorkload
from tinytorch.measure.samples import Samples
from tinytorch.reporting.document import Folded, ParetoPlot, RunOrder, Table, plain_text
from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.quantities import UNKNOWN
from tinytorch.reporting.suite import (
    NO_COMPARISON,
    entries_document,
    shared_notes,
    suite_document,
)
from tinytorch.reporting.terminal import render


def failed(reason="no memory"):
    return outcome(name="gpt/batch 1/numpy/none", details={"failure": reason})


def two_entries():
    return single_stream(), single_stream(factor=2.0, name="mlp/batch 1/reference/none")


def row_of(found, anchor="single-stream"):
    """Return what the table of a scenario says about its only entry, by title and place."""
    part = section(suite_document([found]), anchor)
    columns, (row,) = blocks(part, Table)[0].filled()
    return [(column.title, cell.text) for column, cell in zip(columns, row.cells, strict=True)]


@pytest.mark.parametrize(
    ("outcomes", "planned", "verdict", "tone"),
    [
        (two_entries(), 2, "2 entries measured", "neutral"),
        (two_entries()[:1], 1, "1 entry measured", "neutral"),
        (two_entries(), 5, "Not finished: 3 of 5 entries are missing", "unknown"),
        ((*two_entries(), failed()), 5, "1 entry failed", "bad"),
    ],
)
def test_the_banner_says_how_far_it_came(outcomes, planned, verdict, tone):
    banner = suite_document(outcomes, planned=planned).banner
    assert (banner.verdict, banner.tone) == (verdict, tone)
    assert banner.sentence == NO_COMPARISON


def test_the_subtitle_says_which_run_it_is_and_what_is_missing():
    assert suite_document([single_stream()], run="r1").subtitle == "run r1, 1 entry"
    assert suite_document([single_stream()], planned=3, run="").subtitle.endswith("1 of 3 entries")


def test_every_scenario_has_its_section():
    found = suite_document([single_stream(), offline(), server(), failed("crossed wires")])
    assert anchors(found)[:4] == ["failed", "single-stream", "offline", "server"]
    (reasons,) = section(found, "failed").blocks
    assert [plain_text(each) for each in reasons.items] == [
        "gpt/batch 1/numpy/none/single-stream: crossed wires"
    ]
    assert "gpt" not in words(section(found, "single-stream"))


def test_a_single_stream_has_percentiles_with_intervals():
    found = row_of(single_stream())
    assert found[0] == ("entry", "mlp/batch 1/numpy/none")
    assert [title for title, _ in found].count("95% interval") == 3
    fields = dict(found)
    assert fields["p50"] == "1.50 ms"
    assert fields["p99"] == "1.99 ms"
    assert fields["n"] == "400"
    assert fields["memory"] == "1 MiB"
    assert fields["size"] == "2 KiB"
    assert fields["score"] == "97.6%"
    assert fields["95% interval"] == "97.1% to 98.0%"


def test_what_a_scenario_is_about_has_bars_and_sorts_by_its_number():
    table = blocks(suite_document(two_entries()), Table)[0]
    place = [column.kind for column in table.columns].index("bar")
    cells = [row[place] for row in table.rows]
    assert [cell.sort for cell in cells] == pytest.approx([1.5e-3, 3e-3], rel=1e-2)
    assert [cell.bar for cell in cells] == pytest.approx([0.5, 1.0])


def test_an_unknown_end_is_a_dash():
    assert any(text.endswith("to -") for _, text in row_of(single_stream(count=20)))


def test_offline_shows_throughput():
    values = tuple(1000.0 + position for position in range(20))
    samples = {"throughput": Samples("throughput", values, "examples/s")}
    found = row_of(outcome("offline", samples), "offline")
    assert found[1] == ("throughput", "1.01k examples/s")
    assert found[2][1] in ("1.00k to 1.01k", "1.01k to 1.01k")


def test_a_server_shows_its_rate_and_how_sure_it_is():
    latency = Samples("latency", (0.01,) * 400)
    rate = Samples("rate", (120.0,), "queries/s")
    samples = {"latency": latency, "rate": rate}
    found = dict(row_of(outcome("server", samples, details={"server": SERVER}), "server"))
    assert found["queries/s"] == "120"
    assert found["is"] == "met twice"
    assert found["not above"] == "130"
    assert found["bound"] == "p99 <= 20.0 ms"
    assert found["latency there"] == "10.0 ms"
    assert (found["queries"], found["rates"]) == ("400", "3")


@pytest.mark.parametrize(
    ("changes", "title", "text"),
    [
        ({"is_confirmed": False}, "is", "met once"),
        ({"rate": None}, "is", "none met"),
        ({"bound_is_given": False}, "bound", "p99 <= 20.0 ms (own)"),
    ],
)
def test_a_rate_that_is_less_sure_says_so(changes, title, text):
    found = dict(row_of(outcome("server", details={"server": SERVER | changes}), "server"))
    assert found[title] == text


def test_the_last_run_is_a_ratio_or_a_reason():
    before = single_stream(factor=2.0).record
    assert dict(row_of(single_stream(previous=before)))["time vs last"] == "0.50x"
    found = suite_document([single_stream(not_compared="machine: CPU a against b")])
    assert "not compared with the last run: machine: CPU a against b" in words(found.notes)
    assert "time vs last" not in heads(section(found, "single-stream"))


def test_notes_that_are_alike_are_said_once():
    names = ("a", "b", "c")
    same = [single_stream(name=name, notes=("the same",)) for name in names]
    assert shared_notes(same) == ["all entries: the same"]
    numbers = [
        single_stream(name=name, notes=(f"displaced {count} times",))
        for count, name in enumerate(names, start=5)
    ]
    (only,) = shared_notes(numbers)
    assert only.startswith("a/single-stream: displaced 5 times; the like of 2 more")
    assert shared_notes([single_stream(name="x"), *same[:2]]) == [
        "a/single-stream and 1 more: the same"
    ]


def test_what_is_missing_or_unusual_is_a_note():
    found = single_stream(
        details={
            "accuracy": ACCURACY | {"metric": "log-likelihood", "mean": -1.2},
            "resources": {"not_measured": {"file_bytes": "no parameters"}},
        },
        kept_note="the result was not stored: disk full",
    )
    notes = suite_document([found], notes=["a run goes on"]).notes
    assert notes[0] == "a run goes on"
    for part in ("the score is log-likelihood", "no size: no parameters", "disk full"):
        assert part in words(notes)
    assert dict(row_of(found))["score"] == "-1.2"


def test_fronts_show_the_entries_of_a_target():
    plots = blocks(section(suite_document(two_entries()), "fronts"), ParetoPlot)
    assert [plot.titles[1] for plot in plots] == ["accuracy", "peak memory"]
    assert [plot.units for plot in plots] == [("s", "fraction"), ("s", "B")]
    assert [plot.lower_is_better for plot in plots] == [(True, False), (True, True)]
    first, second = plots[0].points
    assert (first.name, second.name) == ("batch 1/numpy/none", "batch 1/reference/none")
    assert first.x.low <= first.x.value <= first.x.high
    assert (first.y.value, first.y.low, first.y.high) == (0.976, 0.971, 0.98)
    assert (first.is_on_front, second.is_on_front) == (True, False)


def test_a_single_entry_has_no_front():
    assert "fronts" not in anchors(suite_document([single_stream()]))


def test_the_values_of_an_entry_are_there_folded_away():
    (entry,) = blocks(section(suite_document([single_stream()]), "order"), Folded)
    assert entry.title == "mlp/batch 1/numpy/none/single-stream"
    (order,) = blocks(entry, RunOrder)
    assert len(order.runs[0].values) == 400


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(width):
    found = suite_document([single_stream(), single_stream(name="other"), failed()])
    text = shown(render(found), width)
    assert max(map(len, text.splitlines())) <= width
    assert "p50" in text
    assert "mlp/batch 1/numpy/none" in text
    assert "- gpt/batch 1/numpy/none/single-stream: no memory" in text


def test_markdown_has_a_table_per_scenario():
    text = report_markdown([single_stream(), offline()], name="zoo", run="r1", notes=["a note"])
    assert text.startswith("### ⚪ 2 entries measured\n\nSuite zoo: ")
    assert "\nrun r1, 2 entries\n" in text
    assert "**Single-stream** One query after the other." in text
    assert "| mlp/batch 1/numpy/none | 1.50 ms |" in text
    assert "**Offline**" in text
    assert "- a note" in text


def test_names_and_reasons_break_no_markdown():
    text = report_markdown([outcome(details={"failure": "a | b <c>"})], name=HOSTILE, planned=3)
    assert text.startswith("### ❌ 1 entry failed\n")
    assert r": a \| b &lt;c&gt;" in text
    assert "<script" not in text


def test_entries_can_be_listed():
    entries = Suite("zoo", [SuiteWorkload("mlp", batch_sizes=[1, 2])]).entries()
    found = entries_document(entries)
    assert [row[0] for row in rows(found)] == [entry.name for entry in entries]
    assert rows(found)[0][2] == entries[0].key
    assert "2 entries, none run" in shown(render(found))


# ---------------------------------------------------------------- what an entry does not have


def values_of(found, anchor):
    """Return what the table of the only entry says about each title that has something."""
    part = section(suite_document([found]), anchor)
    (table,) = blocks(part, Table)
    (row,) = table.rows
    return {
        column.title: cell.text for column, cell in zip(table.columns[1:], row[1:], strict=True)
    }


@pytest.mark.parametrize("scenario", ["single-stream", "offline", "server", "comparison"])
def test_an_entry_without_samples_is_unknown_in_each_column(scenario):
    found = values_of(outcome(scenario, details={"accuracy": None}), scenario)
    known = {title: text for title, text in found.items() if text not in (UNKNOWN, "")}
    assert set(known.values()) <= {"none met", "0"}
    assert len(found) > 3


def test_a_server_may_have_a_bound_of_its_own_and_have_met_it_once():
    own = {**SERVER, "bound_is_given": False, "is_confirmed": False}
    found = values_of(outcome("server", server().record.samples, details={"server": own}), "server")
    assert "met once" in found.values()
    assert any(text.endswith("(own)") for text in found.values())


def test_a_score_that_is_no_accuracy_is_a_number_and_may_have_no_interval():
    loss = {"metric": "loss", "mean": 1.23456, "low": 1.0, "high": 2.0, "confidence": None}
    found = values_of(single_stream(details={"accuracy": loss}), "single-stream")
    assert found["score"] == "1.235"
    assert "1 to 2" not in found.values()

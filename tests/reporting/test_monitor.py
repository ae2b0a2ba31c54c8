"""The page of a monitor."""

from dataclasses import replace

import pytest
from example_monitors import BEGAN, changed, snapshot, spread
from terminal import shown

from tinytorch.reporting.document import document_of
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.markdown import write
from tinytorch.reporting.monitor import TONES, monitor_document
from tinytorch.reporting.terminal import render


def table_of(document, anchor):
    return next(each for each in document.blocks if getattr(each, "anchor", "") == anchor).blocks[0]


def test_sizes_are_rows_with_their_part_of_the_time():
    rows = table_of(monitor_document(snapshot()), "sizes").rows
    assert [row[0] for row in rows] == ["1x784", "8x784"]
    assert rows[0][3].bar + rows[1][3].bar == pytest.approx(1.0)
    assert rows[1][3].bar == pytest.approx(2 / 3, abs=0.01)


def test_layers_come_slowest_first():
    rows = table_of(monitor_document(snapshot()), "layers").rows
    assert [row[0] for row in rows] == ["layers.0", "layers.1"]
    assert rows[0][2].bar == pytest.approx(0.75)


@pytest.mark.parametrize("kind", TONES)
def test_what_changed_is_the_verdict(kind):
    document = monitor_document(snapshot(changes=[changed(kind)]))
    assert document.banner.tone == TONES[kind]
    assert document.banner.verdict == changed(kind).words


def test_a_slower_layer_comes_before_another_mix_of_inputs():
    document = monitor_document(snapshot(changes=[changed("inputs"), changed("layer")]))
    assert document.banner.verdict == changed("layer").words


def test_what_is_over_is_no_verdict_but_a_row():
    document = monitor_document(snapshot(changes=[changed("layer", ended=BEGAN + 7000)]))
    assert document.banner.tone == "good"
    assert len(table_of(document, "changes").rows) == 1


def test_a_monitor_that_learns_says_nothing_of_changes():
    seen = snapshot(is_learned=False)
    assert monitor_document(seen).banner.tone == "neutral"
    assert "learning" in [note.code for note in seen.notes]


def test_faults_are_a_doubt():
    assert "faults" in [note.code for note in snapshot(faults=3).notes]


def test_without_requests_and_errors_there_is_nothing_about_them():
    full = monitor_document(snapshot())
    bare = monitor_document(replace(snapshot(), requests=spread(1.0, 0), errors=0))
    only_full = {"requests", "throughput", "waiting", "at once", "errors"}
    assert set(dict(full.banner.facts)) - set(dict(bare.banner.facts)) == only_full
    anchors = [{getattr(each, "anchor", "") for each in found.blocks} for found in (full, bare)]
    assert anchors[0] - anchors[1] == {"requests"}


def test_a_minute_alone_is_no_chart():
    full, one, none = (
        monitor_document(replace(snapshot(), minutes=snapshot().minutes[:count]))
        for count in (120, 1, 0)
    )
    charts = [
        [block for each in found.blocks if getattr(each, "anchor", "") == "minutes"
         for block in each.blocks]
        for found in (full, one, none)
    ]  # fmt: skip
    assert [len(each) for each in charts] == [2, 0, 0]


def test_every_medium_has_it():
    seen = snapshot(changes=[changed("layer")])
    text = shown(render(document_of(seen)), width=140)
    assert "layers.0" in text
    assert "8x784" in write(document_of(seen))
    assert "8x784" in report_html(seen)
    assert "median" in str(seen)


def test_names_cannot_break_the_page():
    evil = "<script>alert(1)</script>"
    seen = snapshot(name=evil, layer=evil, changes=[changed("layer", subject=evil)])
    assert evil not in report_html(seen)

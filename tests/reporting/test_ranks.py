"""What is shown of a distributed run."""

import json
from dataclasses import replace

import numpy as np
import pytest
from html_reading import Reading
from scripted_ranks import scripted_run
from terminal import shown

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.html.page import report_html
from tinytorch.reporting.markdown import write
from tinytorch.reporting.ranks import TITLES, ranks_document
from tinytorch.reporting.terminal import render
from tinytorch.scale.ranks import main
from tinytorch.scale.ranks_result import LayerTimes, Link, profile_of
from tinytorch.scale.replay import PathPart
from tinytorch.scale.stragglers import Straggler

SCRIPT = "<script>alert(1)</script>"


def example(rng, *, slow=1.4):
    work = {rank: 50_000 * (1 + 0.02 * rng.standard_normal(60)) for rank in (0, 1)}
    found = profile_of(scripted_run({0: work[0], 1: slow * work[1]}))
    layers = (LayerTimes(SCRIPT, (0.01, 0.02)),)
    links = (Link(0, 1, (1e9,)), Link(1, 0, (2e9,)))
    return replace(found, layers=layers, links=links)


def section(document, anchor):
    return next(each for each in document.blocks if getattr(each, "anchor", "") == anchor)


def test_the_straggler_is_the_verdict(rng):
    document = ranks_document(example(rng))
    assert document.banner.tone == "bad"
    assert document.banner.sentence.startswith("Rank 1 ")
    (row,) = section(document, "stragglers").blocks[0].rows
    assert row[:2] == ("rank 1", "compute")
    assert row[5].sort > 1.2


def test_parts_of_each_rank_are_a_row_that_adds_up(rng):
    found = example(rng, slow=1.0)
    document = ranks_document(found)
    assert document.banner.tone == "good"
    table = section(document, "ranks").blocks[0]
    assert [each.title for each in table.columns[2:]] == list(TITLES.values())
    for row in table.rows:
        assert sum(cell.sort for cell in row[2:]) == pytest.approx(1.0)


def test_a_rank_that_died_is_the_verdict(rng):
    records = scripted_run({rank: np.full(20, 1e4) for rank in (0, 1)})
    records[1].end = ""
    document = ranks_document(profile_of(records))
    assert document.banner.tone == "warning"
    assert "rank 1" in document.banner.sentence


def test_a_run_without_common_steps_is_shown(rng):
    records = scripted_run({rank: np.full(20, 1e4) for rank in (0, 1)})
    records[1].steps.clear()
    del records[0].steps[3:]
    found = profile_of(records[1:])
    assert found.steps == 0
    assert ranks_document(found).banner.tone == "warning"
    assert "no steps" in shown(render(ranks_document(found)))


@pytest.mark.parametrize(
    ("cause", "subject", "row"),
    [
        ("link", "0>1", ("link 0>1", "link", "")),
        ("compute", "blocks.3", ("rank 1", "compute", "blocks.3")),
        ("loading", "", ("rank 1", "loading", "")),
    ],
)
def test_a_straggler_is_a_rank_with_a_layer_or_a_link(rng, cause, subject, row):
    straggler = Straggler(1, cause, Estimate(0.2, 0.1, 0.3, n=60), subject)
    document = ranks_document(replace(example(rng), stragglers=(straggler,)))
    (shown_row,) = section(document, "stragglers").blocks[0].rows
    assert shown_row[:3] == row
    assert shown_row[3].sort == 0.2
    assert document.banner.tone == "bad"
    assert [subject in document.banner.sentence, row[0] in dict(document.banner.facts)] == [
        cause != "link",
        True,
    ]


def test_too_few_steps_are_inconclusive():
    records = scripted_run({rank: np.full(3, 1e4) for rank in (0, 1)})
    found = replace(profile_of(records), stragglers=())
    assert found.is_inconclusive
    assert ranks_document(found).banner.tone == "unknown"


def test_what_recording_costs_stands_with_its_interval(rng):
    found = replace(example(rng), overhead=Estimate(1.02, 1.01, 1.03, n=12), clock_error_s=2e-6)
    facts = dict(ranks_document(found).banner.facts)
    assert "n=12" in facts["overhead"]
    assert "clocks" in facts
    assert "clocks" not in dict(ranks_document(replace(found, clock_error_s=0.0)).banner.facts)


def test_a_share_of_the_path_may_belong_to_no_rank(rng):
    found = replace(example(rng), path=(PathPart(-1, "transfer", 0.5), PathPart(1, "compute", 0.5)))
    owners = dict(ranks_document(found).banner.facts)["critical path"].split(", ")
    assert [each.rpartition(" ")[0] for each in owners] == ["all transfer", "rank 1 compute"]
    assert "critical path" not in dict(ranks_document(replace(found, path=())).banner.facts)


def test_names_are_text_everywhere(rng):
    found = example(rng)
    page = report_html(found)
    assert SCRIPT not in page
    assert any(SCRIPT in text for text in Reading(page).texts("td") + Reading(page).texts("th"))
    assert SCRIPT not in write(ranks_document(found)).replace(f"`{SCRIPT}`", "")
    assert "rank 1" in shown(render(ranks_document(found)))


def test_a_folder_without_records_is_an_error_in_words(tmp_path, capsys):
    assert main(["--read", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_raw_result_is_json(rng):
    assert json.loads(json.dumps(ranks_document(example(rng)).raw))["world"] == 2

from dataclasses import replace

from terminal import shown

from tinytorch.reporting.advice import NOTHING_FITS, render_catalog
from tinytorch.tuning.catalog import CATALOG, find_entries


def test_every_entry_has_a_row_and_what_it_does():
    text = shown(render_catalog(CATALOG), width=120)
    for entry in CATALOG:
        assert f"\n{entry.name} " in text
        assert entry.about in text


def test_a_row_says_risk_role_goals_and_models():
    text = shown(render_catalog(find_entries(["threads"])), width=80)
    assert text.splitlines()[:2] == [
        "entry    risk   role     goal  models",
        "threads  exact  threads  time  PyTorch on cpu",
    ]


def test_what_serves_bytes_or_one_goal_says_so():
    (entry,) = find_entries(["int8-static"])
    only_bytes = replace(entry, serves=frozenset({"memory", "size"}))
    only_size = replace(entry, serves=frozenset({"size"}))
    text = shown(render_catalog([entry, only_bytes, only_size]), width=80)
    assert [line.split()[3] for line in text.splitlines()[1:7:2]] == ["all", "bytes", "size"]


def test_no_line_is_wider_than_a_small_terminal():
    text = shown(render_catalog(CATALOG), width=72)
    assert max(map(len, text.splitlines())) <= 72


def test_a_catalog_of_nothing_says_so():
    assert shown(render_catalog([]), width=80).strip() == NOTHING_FITS

import pytest
from example_records import ENVIRONMENT, record, series
from terminal import shown

from tinytorch.measure.samples import Samples
from tinytorch.records.history import overview, trends
from tinytorch.records.store import RecordStore
from tinytorch.reporting.history import history_document, overview_document, record_document
from tinytorch.reporting.quantities import value_text
from tinytorch.reporting.terminal import render

FOREIGN = {**ENVIRONMENT, "fingerprint": "pytest-benchmark-0123456789abcdef"}


def rendered(build, result, **context):
    """Return what a terminal shows of a document."""
    return render(build(result, **context))


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        opened.add_all(series([0.002, 0.0025, 0.003]))
        opened.add_all(series([5000.0], name="mlp", metric="throughput", unit="examples/s"))
        opened.add(record(name="bare [x]", samples={}, environment=FOREIGN))
        yield opened


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0025, "s", "2.50 ms"),
        (2048.0, "B", "2 KiB"),
        (2048.0, "bytes", "2 KiB"),
        (0.931, "fraction", "93.1%"),
        (4.1e10, "FLOP/s", "41.0 GFLOP/s"),
        (43_890.0, "examples/s", "43.9k examples/s"),
        (0.951234, "", "0.9512"),
        (3.5, "J", "3.5 J"),
        (None, "J", "-"),
        (None, "s", "-"),
    ],
)
def test_numbers_are_written_in_their_unit(value, unit, text):
    assert value_text(value, unit) == text


def test_the_overview_has_a_line_for_each_metric_of_a_series(store):
    lines = shown(rendered(overview_document, overview(store)), width=140).splitlines()
    assert lines[0].split() == [
        "name",
        "kind",
        "metric",
        "n",
        "last",
        "change",
        "trend",
        "date",
        "machine",
    ]
    (gpt,) = [line for line in lines if line.startswith("gpt")]
    for words in ("latency", " 3 ", "3.00 ms", "+20.0%", "▁▅█", "2026-03-01 02:00", "c0ffee5e"):
        assert words in gpt
    (bare,) = [line for line in lines if line.startswith("bare [x]")]
    assert "pytest-benchmark-01234567" in bare
    assert "more" not in lines[-1]


def test_the_overview_says_when_there_is_more(store):
    assert "--limit N" in shown(
        rendered(overview_document, overview(store, limit=1), has_more=True)
    )


def test_a_narrow_terminal_shows_the_most_important(store):
    text = shown(rendered(overview_document, overview(store)), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "3.00 ms" in text
    assert "latency" in text


def test_a_trend_shows_its_picture_its_changes_and_its_last_records():
    values = [0.002] * 12 + [0.003] * 12
    text = shown(rendered(history_document, trends(series(values)), limit=5), width=100)
    assert "gpt  latency, measurement, machine c0ffee5e, batch 8, device cpu" in text
    assert "●" in text
    assert "┊" in text
    assert "Change on 2026-03-01 12:00 at adbfef06a945: 2.00 ms to 3.00 ms (1.50x), p = " in text
    table = text[text.index("median") :].splitlines()[1:6]
    assert all("3.00 ms" in line and "adbfef06a945" in line for line in table)
    assert "2.97 ms to 3.03 ms (75%)" in table[0], "an interval says when it covers less than 95%"
    assert "2026-03-01 18:00" not in text, "only the last five are listed"


def test_the_record_at_which_a_level_begins_is_marked():
    text = shown(
        rendered(history_document, trends(series([1.0] * 10 + [2.0] * 10)), limit=20), width=120
    )
    (marked,) = [line for line in text.splitlines() if "changed" in line]
    assert marked.startswith("2026-03-01 10:00")


def test_a_trend_without_a_change_says_that_none_is_shown():
    text = shown(rendered(history_document, trends(series([1.0, 1.0])), limit=5))
    assert "No change of level is shown." in text


def test_a_single_record_needs_no_picture():
    text = shown(rendered(history_document, trends([record()]), limit=5))
    assert "●" not in text
    assert "2.50 ms" in text


def test_unlike_series_are_shown_apart():
    records = [*series([1.0, 2.0]), *series([5.0, 6.0], settings={"batch": 1})]
    text = shown(rendered(history_document, trends(records), limit=5))
    assert "batch 1" in text
    assert "batch 8" in text
    assert "2 series of unlike machines or settings: never merged" in text


def test_doubts_are_shown_with_a_trend(rng):
    values = [1 + 0.01 * n + 0.0005 * rng.standard_normal() for n in range(50)]
    assert "- the values also move within the levels" in shown(
        rendered(history_document, trends(series(values)), limit=5)
    )


def test_a_record_is_shown_in_full():
    made = record(
        samples={"latency": Samples("latency", (0.00251, 0.0025), loops=7, notes=("noisy",))},
        details={"why": ["because [x]"]},
        notes=("first run",),
        run="r7",
        environment={**ENVIRONMENT, "commit": {"hash": "ab" * 20, "is_dirty": True}},
    )
    text = shown(rendered(record_document, made), width=100)
    for words in (
        made.hash,
        "2026-03-01T00:00:00.000000+00:00",
        "abababababab and changes",
        "r7",
        "- first run",
        "- noisy",
        "0.00251 0.0025",
        "2.50 ms",
        '"batch": 8',
        "AMD EPYC",
        "because [x]",
    ):
        assert words in text


def test_a_record_without_metrics_can_be_shown():
    text = shown(rendered(record_document, record(samples={}, settings={})))
    assert "Raw values" not in text
    assert "Settings" not in text

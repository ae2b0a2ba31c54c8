"""What a rank wrote is read again, as far as it came."""

import pytest

from tinytorch.errors import RecordError
from tinytorch.scale.rank_file import (
    FORWARD,
    Call,
    RankWriter,
    Site,
    Span,
    StepRecord,
    Wait,
    file_of,
    read_folder,
    read_rank,
)

HEAD = {"schema": 1, "rank": 1, "world": 2}
SPANS, CALLS, WAITS = (Span(FORWARD, 1, 2),), (Call(0, 0, 3, -1),), (Wait(4, 5, 0, 0),)
STEP = StepRecord(0, 10, 90, SPANS, CALLS, WAITS, (7,))


@pytest.fixture
def writer(tmp_path):
    found = RankWriter(tmp_path, 1)
    found.write("head", HEAD)
    yield found
    found.close()


def test_a_record_is_read_as_it_was_written(writer, tmp_path):
    site = Site("allreduce", "0", (0, 1), 64, "float32")
    writer.write("site", site)
    writer.write("layers", ["fc"])
    assert writer.write_step(STEP)
    writer.write("end", {"reason": "finished", "own_share": 0.001})
    (record,) = read_folder(tmp_path)
    assert (record.rank, record.world, record.end) == (1, 2, "finished")
    assert (record.sites, record.layers, record.steps) == ([site], ["fc"], [STEP])
    assert record.own_share == 0.001


def test_a_line_that_was_cut_off_is_left_out(writer):
    writer.write_step(STEP)
    writer.write_step(STEP)
    text = writer.path.read_text()
    writer.path.write_text(text[:-9])
    record = read_rank(writer.path)
    assert (len(record.steps), record.end) == (1, "")


def test_steps_end_before_the_file_is_too_large(tmp_path):
    writer = RankWriter(tmp_path, 0, limit=25_000)
    writer.write("head", {**HEAD, "rank": 0})
    written = sum(writer.write_step(STEP) for _ in range(500))
    writer.close()
    assert 0 < written < 500
    assert file_of(tmp_path, 0).stat().st_size < 25_000


def test_a_folder_without_records_says_so(tmp_path):
    with pytest.raises(RecordError):
        read_folder(tmp_path)
    file_of(tmp_path, 0).write_text("")
    with pytest.raises(RecordError):
        read_folder(tmp_path)

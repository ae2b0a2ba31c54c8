import csv
import io

import pytest
from example_boards import accuracy, refused, run, some_board
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.board import make_board
from tinytorch.competition.board_files import COLUMNS, grades_csv, points_of
from tinytorch.competition.judgement import Score
from tinytorch.competition.rules import finding
from tinytorch.errors import SettingError


def rows(board, **settings):
    return list(csv.DictReader(io.StringIO(grades_csv(board, **settings), newline="")))


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1.1, 50))
def test_points_lie_between_0_and_100_and_grow_with_what_is_shown(one, other, full):
    less, more = (
        points_of(Score(low, low, low, n=10), full_marks_at=full) for low in sorted([one, other])
    )
    assert 0 <= less <= more <= 100


@pytest.mark.parametrize(
    ("low", "points"), [(0.9, 0), (1, 0), (2**0.5, 25), (2, 50), (4, 100), (9, 100)]
)
def test_points_follow_doublings(low, points):
    assert points_of(Score(10, low, 20, n=10)) == pytest.approx(points)


def test_there_is_one_row_for_each_team_and_event():
    found = rows(some_board())
    keys = [(row["team"], row["event"]) for row in found]
    assert len(set(keys)) == len(keys) == 8
    assert keys == sorted(keys)
    assert tuple(found[0]) == COLUMNS


def test_a_verified_standing_goes_before_a_better_one_that_is_not():
    runs = [run(2.0), run(9.0, status="unverified", description="another")]
    (row,) = rows(make_board(runs))
    assert row["status"] == "verified"
    assert float(row["points"]) < 60


def test_who_was_refused_has_no_points_and_the_reasons():
    (row,) = rows(make_board([refused()]))
    assert (row["points"], row["verdict"]) == ("0.0", "not valid")
    assert row["findings"].startswith("T3: a question")


def test_who_was_found_out_by_the_organiser_has_no_points_for_what_was_told_before():
    (row,) = rows(make_board([run(9.0, status="unverified"), refused(day=2)]))
    assert (row["points"], row["verdict"]) == ("0.0", "not valid")


def test_warnings_are_said_beside_the_points():
    (row,) = rows(make_board([run(findings=(finding("W2", "busy"),))]))
    assert row["findings"] == "W2: busy"


@pytest.mark.parametrize(
    ("found", "kept"),
    [(accuracy(), "yes"), (accuracy(lost=200), "lost"), (None, "not measured")],
)
def test_whether_the_tier_is_kept_is_a_column(found, kept):
    (row,) = rows(make_board([run(accuracy=found)]))
    assert row["tier_kept"] == kept


def test_full_marks_can_be_had_for_less():
    (row,) = rows(make_board([run(2.0)]), full_marks_at=1.5)
    assert row["points"] == "100.0"


@pytest.mark.parametrize("wrong", [1.0, 0.5, float("inf"), float("nan")])
def test_full_marks_for_no_speedup_are_refused(wrong):
    with pytest.raises(SettingError, match="give a speedup above 1"):
        grades_csv(some_board(), full_marks_at=wrong)


def test_a_name_that_is_a_formula_is_text():
    (row,) = rows(make_board([run(team="=1+1")]))
    assert row["team"] == "'=1+1"


def test_points_are_open_while_a_signature_was_not_checked():
    told, signed = run(2.0, status="unverified"), run(2.0, day=2, status="signature not checked")
    (row,) = rows(make_board([told, signed]))
    assert (row["points"], row["status"]) == ("", "signature not checked")
    assert "[sign]" in row["findings"]
    (row,) = rows(make_board([signed, run(2.0, day=3)]))
    assert row["status"] == "verified"

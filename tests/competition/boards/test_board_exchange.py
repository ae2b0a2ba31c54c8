import csv
import io
import json

import pytest
from example_boards import accuracy, run, some_board

from tinytorch.competition.board import make_board
from tinytorch.competition.board_files import CSV_COLUMNS, SCHEMA, board_fields, to_csv, to_json


def rows(board):
    return list(csv.DictReader(io.StringIO(to_csv(board), newline="")))


def test_json_says_its_format_and_version():
    found = json.loads(to_json(some_board()))
    assert (found["format"], found["schema"]) == ("tinytorch competition board", SCHEMA)
    assert list(found) == ["format", "schema", "contests", "runs", "damaged", "rounds"]


def test_json_has_all_runs_rounds_and_damaged_files():
    board = some_board()
    found = json.loads(to_json(board))
    assert [each["sha256"] for each in found["runs"]] == [run.sha256 for run in board.runs]
    seeds = {each["name"]: each["seed"] for each in found["rounds"]}
    assert seeds["summer"] is None
    assert seeds["spring"]
    assert found["damaged"][0]["path"] == "mlp_sprint/eve/x.json"


def test_json_says_what_every_technique_counts():
    ranking = json.loads(to_json(some_board()))["contests"][0]["verified"]
    standing = next(each for each in ranking["standings"] if each["team"] == "Katherine")
    names = [each["name"] for each in standing["techniques"]]
    assert names == ["int8-dynamic", "fused-layers"]
    assert standing["techniques"][1]["others_without_it"] == 3


def test_csv_has_a_row_for_each_standing_and_each_run_that_is_not_ranked():
    board = some_board()
    found = rows(board)
    standings = sum(len(c.verified.speed) + len(c.unverified.speed) for c in board.contests)
    assert len(found) == standings + 1
    (wrong,) = [each for each in found if not each["rank"]]
    assert wrong["team"] == "Mallory"
    assert wrong["reason"].startswith("T3: ")


def test_csv_numbers_are_those_of_the_board():
    place = some_board().contests[0].verified.speed[0]
    row = rows(some_board())[0]
    assert float(row["score"]) == place.score.value
    assert float(row["composite_low"]) == place.composite.low
    assert row["innovation_rank"] == "1"
    assert tuple(row) == CSV_COLUMNS


def test_what_is_not_finite_is_left_empty():
    lost = accuracy()
    scores = (*lost.candidate_scores[:-1], float("nan"))
    broken = type(lost)(lost.baseline_scores, scores)
    (row,) = rows(
        make_board(
            [
                run(accuracy=broken),
            ]
        )
    )
    assert row["entry_accuracy"] == ""


@pytest.mark.parametrize("write", [to_csv, to_json])
def test_an_empty_board_can_be_written(write):
    assert write(make_board([]))


def test_runs_whose_signature_was_not_checked_are_listed_without_a_rank():
    board = make_board([run(status="signature not checked")])
    (contest,) = board_fields(board)["contests"]
    assert contest["signature_not_checked"] == [board.runs[0].sha256]
    (row,) = rows(board)
    assert (row["rank"], row["status"], row["reason"]) == ("", *["signature not checked"] * 2)

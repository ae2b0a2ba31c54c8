import random
from itertools import pairwise

import pytest
from example_boards import ROUNDS, refused, run, some_board, some_runs

from tinytorch.competition.board import make_board
from tinytorch.competition.board_files import to_json
from tinytorch.competition.run_files import DamagedFile
from tinytorch.errors import SettingError


def first(board):
    return board.contests[0]


def teams(places):
    return [(place.rank, place.standing.team) for place in places]


def test_the_order_of_records_makes_no_difference_to_a_single_byte():
    runs, rounds = list(some_runs()), list(ROUNDS)
    damaged = [DamagedFile("b", "torn"), DamagedFile("a", "torn")]
    expected = to_json(make_board(runs, rounds=rounds, damaged=damaged))
    for seed in range(5):
        for each in (runs, rounds, damaged):
            random.Random(seed).shuffle(each)
        assert to_json(make_board(runs, rounds=rounds, damaged=damaged)) == expected


def test_those_who_are_not_shown_to_differ_share_a_rank():
    assert teams(first(some_board()).verified.speed) == [
        (1, "Katherine"),
        (2, "Ada"),
        (2, "Grace"),
        (4, "Reference"),
    ]


def test_inside_of_a_band_less_memory_breaks_a_tie():
    runs = [run(2.0, team="large", peak=9e6), run(2.0, team="small", peak=3e6)]
    assert teams(first(make_board(runs)).verified.speed) == [(1, "small"), (1, "large")]


def test_unverified_entries_are_ranked_in_a_table_of_their_own():
    found = first(some_board())
    assert teams(found.unverified.speed) == [(1, "Alan")]
    assert "Alan" not in {team for _, team in teams(found.verified.speed)}


def test_contests_come_in_the_order_of_the_events():
    found = [(each.contest.event, each.contest.tier) for each in some_board().contests]
    assert found == [
        ("mlp_sprint", 0.99),
        ("mlp_sprint", 0.999),
        ("cnn_marathon", 0.99),
        ("transformer_decathlon", 0.99),
    ]


def test_a_contest_in_which_all_were_refused_is_still_shown():
    found = first(make_board([refused()]))
    assert found.verified.speed == found.unverified.speed == ()
    assert len(found.refused) == 1


def test_no_runs_make_an_empty_board():
    assert make_board([]).contests == ()


def test_an_unknown_kind_of_table_is_refused():
    with pytest.raises(SettingError, match="no board of 'size'; there are speed, innovation"):
        first(some_board()).verified.table("size")


def test_the_composite_is_that_of_every_table():
    for place in first(some_board()).verified.composite:
        assert place.score == place.composite


# ---------------------------------------------------------------- records


def test_a_record_needs_its_low_above_the_score_of_the_former():
    history = first(some_board()).verified.history
    assert [mark.team for mark in history] == ["Ada", "Grace", "Ada", "Katherine"]
    for former, new in pairwise(history):
        assert new.score.low > former.score.value
        assert new.created_at >= former.created_at


def test_what_is_not_faster_than_the_reference_is_no_record():
    assert first(make_board([run(1.0, techniques=())])).verified.history == ()


def test_a_former_record_stays_when_its_team_enters_something_slower():
    runs = [run(3.0, day=1), run(2.0, day=2, description="another")]
    (mark,) = first(make_board(runs)).verified.history
    assert mark.score.value == pytest.approx(3.0, rel=0.1)


def test_who_was_found_out_holds_no_record():
    runs = [run(9.0, day=1), refused(day=2), run(2.0, day=3, team="Grace")]
    assert [mark.team for mark in first(make_board(runs)).verified.history] == ["Grace"]


def test_a_run_whose_signature_was_not_checked_stands_apart_and_changes_nothing_else():
    others = some_runs()
    waiting = run(9.0, team="Ada", day=9, status="signature not checked")
    found, without = make_board([*others, waiting]), make_board(others)
    assert first(found).not_checked == (waiting,)
    assert first(found).verified == first(without).verified
    assert first(found).unverified == first(without).unverified
    assert [each.not_checked for each in without.contests] == [()] * 4

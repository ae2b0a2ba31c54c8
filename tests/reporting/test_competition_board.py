import pytest
from example_boards import refused, run, some_board
from terminal import shown

from tinytorch.competition.board import KINDS, Credit, make_board
from tinytorch.competition.judgement import Score
from tinytorch.reporting.competition import (
    NOT_AFFILIATED,
    cap_text,
    credit_text,
    innovation_text,
    print_board,
    rank_texts,
    runs_text,
    show_board,
    standing_notes,
)


def text(board=None, **settings):
    return shown(show_board(board or some_board(), **settings), settings.pop("width", 160))


def first_place(*runs):
    return make_board(runs).contests[0].verified.speed[0]


def test_ranks_teams_and_scores_are_shown_and_shared_ranks_marked():
    lines = text().splitlines()
    assert any(line.startswith("1     Katherine  2.59x (2.54x to 2.63x)") for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("2=")] == ["Ada", "Grace"]


def test_unverified_and_refused_ones_stand_below_and_say_so():
    found = text(event="mlp_sprint")
    order = ["Katherine", "unverified: as the teams say themselves", "Alan", "not ranked", "T3"]
    places = [found.index(part) for part in order]
    assert places == sorted(places)


def test_an_event_can_be_chosen():
    found = shown(show_board(some_board(), "cnn_marathon"))
    assert "CNN Marathon" in found
    assert "MLP Sprint" not in found


def test_an_event_without_runs_says_so():
    found = shown(show_board(make_board([]), "cnn_marathon"))
    assert "There is no run of CNN Marathon yet." in found


def test_a_contest_without_a_valid_run_says_so():
    assert "No valid run yet." in text(make_board([refused()]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_is_and_that_nobody_else_stands_behind_it(kind):
    found = text(kind=kind)
    assert f"{kind}: " in found
    assert NOT_AFFILIATED in found


def test_innovation_says_why():
    found = text(kind="innovation")
    assert "fused-layers: 1.60x (1.57x to 1.63x), 3 of 3 others do without" in found
    assert "kv-cache: not measured" in found


def test_records_rounds_and_damaged_files_are_listed():
    found = text()
    assert "record: Katherine since 2027-03-08 10:00 UTC" in found
    assert "seed not revealed yet" in found
    assert "\nmlp_sprint/eve/x.json\n  its hash is not that of its contents" in found


def test_the_classic_way_prints(capsys):
    assert print_board(some_board(), "composite", event="mlp_sprint") is None
    assert "composite: 70% speed, 30% innovation" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    found = shown(show_board(some_board(), kind="composite"), width)
    assert max(map(len, found.splitlines())) <= width


# ---------------------------------------------------------------- words


def test_a_rank_of_one_team_has_no_equals_sign():
    places = some_board().contests[0].verified.speed
    assert rank_texts(places) == ["1", "2=", "2=", "4"]


def test_runs_that_are_not_valid_are_counted_beside():
    place = first_place(refused(day=1), run(day=2), run(day=3, seed=3))
    assert runs_text(place.standing) == "2 of 3"
    assert "1 of its runs not valid" in standing_notes(place)


def test_notes_say_what_to_doubt():
    place = first_place(run(2.0, day=1), run(3.0, day=2), run(day=1, description="older", seed=9))
    assert "its runs differ by more than chance" in standing_notes(place)
    assert "entry 2 of this team" in standing_notes(place)
    capped = first_place(run(1.0, contributions={"int8-dynamic": 5.0}))
    assert standing_notes(capped) == ["innovation capped by its speed"]
    secret = first_place(run(status="verified, seed not revealed"))
    assert standing_notes(secret) == ["seed not revealed yet"]


def test_a_credit_says_that_it_helps_elsewhere():
    credit = Credit("a", Score(2, 1.9, 2.1, n=10), 3, 1, helps_elsewhere=True)
    assert credit_text(credit).endswith("1 of 3 others do without, also helps in another event")


def test_where_innovation_is_capped_the_number_says_so():
    board = make_board([run(1.0, contributions={"int8-dynamic": 5.0})])
    found = text(board, kind="innovation")
    assert "1.000x (capped by its speed)" in found
    assert "capped by its speed: the credits come to 4." in found
    assert innovation_text(first_place(run()).innovation) == "1.000x"
    assert cap_text(first_place(run()).innovation) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_has_a_heading(kind):
    board = make_board([run(1.0, contributions={"int8-dynamic": 5.0}), run(day=2, description="b")])
    (head,) = [line for line in text(board, kind=kind).splitlines() if line.startswith("rank")]
    assert head.split()[-1] == "notes"


def test_runs_whose_signature_was_not_checked_stand_apart_and_the_extra_is_named_once():
    signed = [run(2.0, team=team, status="signature not checked") for team in ("Ada", "Grace")]
    found = shown(show_board(make_board(signed)), 400)
    assert "signature not checked: signed; whether by the organiser's key" in found
    assert "- Grace" in found
    assert "unverified" not in found
    assert found.count("[sign]") == 1

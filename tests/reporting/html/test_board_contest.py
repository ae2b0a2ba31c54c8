from example_boards import refused, run, some_board
from html_reading import Reading

from tinytorch.competition.board import make_board
from tinytorch.competition.rules import RULES
from tinytorch.reporting.html.board_page import contest_section


def section(board=None, place=0):
    return contest_section((board or some_board()).contests[place], "here")


def read(board=None, place=0):
    return Reading(section(board, place).body)


def test_the_title_is_the_contest():
    found = section(place=1)
    assert (found.anchor, found.title) == ("here", "MLP Sprint, closed, 99.9%")


def test_verified_and_unverified_ones_have_a_picture_and_three_tables_each():
    found = read()
    assert found.texts("h3") == ["Verified", "Unverified", "Not ranked"]
    assert len(found.all("svg", class_="forest")) == 2
    for kind in ("speed", "innovation", "composite"):
        assert len(found.all("table", class_=f"board-{kind}")) == 2


def test_rows_are_those_of_the_board_with_what_to_sort_by():
    rows = [row for row in read().rows() if row[1:2] == ["Katherine"]]
    assert rows[0][:5] == ["1", "Katherine", "2.59x", "2.54x to 2.63x", "faster"]
    ranks = [
        float(each["data-sort"]) for each in read().all("th", scope="row") if "data-sort" in each
    ]
    assert ranks[:4] == [1.0, 2.0, 2.0, 4.0]


def test_every_technique_has_a_row_with_its_credit():
    rows = {(row[0], row[1]): row[2:] for row in read().rows() if len(row) == 6}
    found = rows["Katherine", "fused-layers"]
    assert found == ["1.60x (1.57x to 1.63x)", "3 of 3", "no", "1.57x"]
    assert rows["Alan", "int8-dynamic"][0] == "not measured"


def test_records_are_a_picture_and_a_table_the_newest_first():
    found = read()
    assert len(found.all("svg", class_="trend")) == 1
    since = [row[1] for row in found.rows() if len(row) == 5 and row[0].startswith("2027")]
    assert since[:4] == ["Katherine", "Ada", "Grace", "Ada"]


def test_a_single_record_has_no_picture():
    assert read(make_board([run()])).all("svg", class_="trend") == []


def test_nobody_faster_than_the_reference_has_no_records():
    assert "records" not in " ".join(read(make_board([run(1.0)])).texts("caption"))


def test_refused_runs_say_what_was_seen_and_what_to_do():
    found = read(make_board([refused()]))
    assert found.texts("h3") == ["Not ranked"]
    (row,) = [row for row in found.rows() if row[0] == "Ada"]
    assert row[1:4] == [
        "it breaks T3",
        "T3: a question that came again took 0.1 of its time",
        RULES["T3"].fix,
    ]


def test_runs_whose_signature_was_not_checked_have_a_list_of_their_own():
    found = read(make_board([run(status="signature not checked")]))
    assert found.texts("h3") == ["Signature not checked"]
    (row,) = [row for row in found.rows() if row[0] == "Ada"]
    assert "x to " in row[1]


def test_where_innovation_is_capped_it_says_so_beside_it():
    rows = read(make_board([run(1.0, contributions={"int8-dynamic": 5.0})])).rows()
    notes = [row[-1] for row in rows if row[-1].startswith("capped by its speed: the credits")]
    assert len(notes) == 1
    assert any(row[-1] == "1.000x (capped by its speed)" for row in rows)

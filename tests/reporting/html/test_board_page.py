import base64
import re
from dataclasses import replace

import pytest
from example_boards import ROUNDS, SECRET, refused, run, some_board
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.competition.board import make_board
from tinytorch.competition.board_files import to_csv, to_json
from tinytorch.competition.rules import Finding
from tinytorch.competition.run_files import DamagedFile
from tinytorch.reporting.competition import NOT_AFFILIATED
from tinytorch.reporting.html.board_page import board_page
from tinytorch.reporting.html.page import render_page, report_html


def page(board=None, **context):
    return Reading(report_html(board or some_board(), **context))


def hostile_board():
    """Give a board in which everything that others write is a script."""
    told = Finding("A1", HOSTILE, HOSTILE)
    runs = [
        run(team=f"{HOSTILE.replace('/', '')}", description=HOSTILE, path=HOSTILE),
        run(findings=(told,), round_name=HOSTILE, day=2, techniques=()),
    ]
    damaged = [DamagedFile(HOSTILE, HOSTILE)]
    signed = [replace(runs[0], signer=HOSTILE, sha256="1" * 64), runs[1]]
    return make_board(signed, damaged=damaged, rounds=ROUNDS)


def test_the_banner_counts_what_the_board_rests_on():
    banner = board_page(some_board()).banner
    assert banner.verdict == "6 teams on the board"
    assert dict(banner.facts) == {
        "contests": "4",
        "verified runs": "10",
        "unverified runs": "1",
        "runs not ranked": "1",
        "files that do not count": "1",
    }


def test_it_is_said_that_it_is_not_affiliated():
    assert page().texts("p", class_="subtitle") == [NOT_AFFILIATED]


def test_an_empty_board_has_a_page():
    found = board_page(make_board([]))
    assert found.banner.verdict == "No runs yet"
    assert [each.anchor for each in found.sections] == ["files"]


def test_sections_lead_from_the_overview_to_the_files():
    anchors = [each.anchor for each in board_page(some_board()).sections]
    contests = [f"contest-{place}" for place in range(1, 5)]
    assert anchors == ["overview", *contests, "rounds", "damaged", "runs", "files"]


def test_the_overview_names_all_who_share_the_first_rank():
    runs = [run(2.0, team="Ada", seed=1), run(2.0, team="Grace", seed=2)]
    (row,) = [row for row in page(make_board(runs)).rows() if row[0].startswith("MLP")]
    assert row[1] in ("Ada, Grace", "Grace, Ada")
    assert row[3] == "verified"


def test_a_contest_that_nobody_leads_says_so():
    (row,) = [row for row in page(make_board([refused()])).rows() if row[0].startswith("MLP")]
    assert row[1:3] == ["nobody", "-"]


def test_seeds_are_shown_where_they_are_revealed():
    rows = {row[0]: row for row in page().rows() if len(row) == 4}
    assert rows["spring"][2:] == [ROUNDS[1].commitment, SECRET]
    assert rows["summer"][3] == "not revealed yet"


def test_every_run_is_listed_the_newest_first():
    board = some_board()
    hashes = [row[-1] for row in page(board).rows() if len(row) == 9 and row[0] != "when"]
    assert hashes == [each.sha256[:12] for each in reversed(board.runs)]


def test_many_runs_are_folded_away():
    runs = [run(day=day, seed=day) for day in range(1, 25)]
    assert "open" not in page(make_board(runs)).all("details")[0]
    assert "open" in page().all("details")[0]


def test_the_files_inside_are_those_of_the_board():
    board = some_board()
    links = {each["download"]: each["href"] for each in page(board).all("a") if "download" in each}
    decoded = {
        name: base64.b64decode(href.partition("base64,")[2]).decode()
        for name, href in links.items()
    }
    assert decoded == {"board.csv": to_csv(board), "board.json": to_json(board)}


def test_nothing_is_fetched_from_elsewhere():
    html = report_html(some_board())
    assert not re.search(r"""(?:src|href)="(?!#|data:)""", html)


def test_the_same_board_is_the_same_file():
    assert report_html(some_board()) == report_html(some_board())


def test_names_are_text():
    html = render_page(board_page(hostile_board(), name=HOSTILE))
    assert HOSTILE not in html
    assert html.count("<script>") == 1  # ours
    assert "&lt;script&gt;alert(1)&lt;" in html


@pytest.mark.parametrize("board", [some_board, hostile_board, lambda: make_board([])])
def test_a_browser_shows_it_without_complaint(browser_page, board):
    shown = browser_page(report_html(board()), width=390, dark=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("name", ["board.csv", "board.json"])
def test_a_click_downloads_the_file(browser_page, name, scripts):
    shown = browser_page(report_html(some_board()), scripts=scripts)
    with shown.expect_download() as found:
        shown.click(f'a[download="{name}"]')
    assert found.value.suggested_filename == name
    write = {"board.csv": to_csv, "board.json": to_json}[name]
    assert found.value.path().read_bytes().decode() == write(some_board())


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_sorts_a_table_by_its_numbers(browser_page, width):
    shown = browser_page(report_html(some_board()), width=width)
    board = shown.locator("#contest-1 table.board-composite").first
    board.locator("thead button", has_text="speed").click()
    teams = board.locator("tbody td:nth-child(2)").all_inner_texts()
    assert teams[0] == "Katherine"
    board.locator("thead button", has_text="speed").click()
    assert board.locator("tbody td:nth-child(2)").all_inner_texts() == teams[::-1]
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_extra_that_checks_signatures_is_named_once():
    runs = [run(team=team, status="signature not checked") for team in ("Ada", "Grace")]
    found = board_page(make_board(runs))
    assert dict(found.banner.facts)["signatures not checked"] == "2"
    assert dict(found.banner.facts)["unverified runs"] == "0"
    html = report_html(make_board(runs))
    assert html.count("[sign]") == 1
    assert "not checked" in [row[-2] for row in Reading(html).rows() if len(row) == 9]


def test_every_column_has_a_heading():
    assert all(page().texts("th", scope="col"))


def wide_board():
    """Give a board with long names, several techniques and every note that a row can have."""
    both = {"int8-dynamic": 1.5, "fused-layers": 1.6, "compiled-kernels": 5.0}
    common = {"team": "The Extraordinarily Fast Writers", "contributions": both}
    common |= {"techniques": tuple(both), "status": "verified, seed not revealed"}
    runs = [
        run(speed, day=day, seed=day, **common) for day, speed in ((1, 1.0), (2, 2.0), (3, 2.2))
    ]
    return make_board([*runs, refused(day=4, **common), run(1.0, day=1, description="x", **common)])


@pytest.mark.parametrize("board", [some_board, wide_board])
def test_no_table_of_a_contest_has_to_be_scrolled_at_1200_pixels(browser_page, board):
    shown = browser_page(report_html(board()), width=1200)
    tables = ", ".join(f"table.board-{kind}" for kind in ("speed", "innovation", "composite"))
    hidden = "each => each.map(t => t.scrollWidth - t.parentElement.clientWidth)"
    assert max(shown.eval_on_selector_all(tables, hidden)) <= 0

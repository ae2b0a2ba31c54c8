"""Pages of boards and judgements."""

import base64
import json
import re
from dataclasses import replace

import pytest
from example_boards import ROUNDS, SECRET, judgement, refused, run, some_board
from example_pages import HOSTILE
from html_reading import Reading

from tinytorch.competition.board import make_board
from tinytorch.competition.board_files import to_csv, to_json
from tinytorch.competition.judgement import Ablation
from tinytorch.competition.rules import Finding
from tinytorch.competition.run_files import DamagedFile
from tinytorch.reporting.competition import NOT_AFFILIATED
from tinytorch.reporting.html.page import page_of, report_html


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


def hostile_judgement():
    return judgement(
        description=HOSTILE,
        round_name=HOSTILE,
        notes=(HOSTILE,),
        protection={HOSTILE: HOSTILE},
        ablations=(Ablation(HOSTILE, reason=HOSTILE),),
        findings=(Finding(HOSTILE, HOSTILE, HOSTILE, "warning"),),
    )


def whole():
    return judgement(2.0, contributions={"int8-dynamic": 1.5})


def test_it_is_said_that_it_is_not_affiliated():
    assert page().texts("p", class_="subtitle") == [NOT_AFFILIATED]
    assert page(whole()).texts("p", class_="subtitle") == [NOT_AFFILIATED]


def test_rankings_have_pictures_and_tables():
    found = page()
    # Five rankings, of which one has had several records.
    assert len(found.all("div", class_="forest")) == 5
    assert len(found.all("svg", class_="trend")) == 1
    assert found.texts("h3")[:3] == ["Verified", "Unverified", "Not ranked"]
    assert ["1", "Katherine", "2.59x"] in [row[:3] for row in found.rows()]


def test_seeds_are_shown_where_they_are_revealed():
    rows = {row[0]: row for row in page().rows() if len(row) == 4}
    assert rows["spring"][2:] == [ROUNDS[1].commitment, SECRET]
    assert rows["summer"][3] == "not revealed yet"


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
    html = report_html(hostile_board(), name=HOSTILE)
    assert HOSTILE not in html
    assert html.count("<script>") == 1  # ours
    assert "&lt;script&gt;alert(1)&lt;" in html
    assert HOSTILE not in report_html(hostile_judgement())


def test_every_column_has_a_heading():
    assert all(page().texts("th", scope="col"))


def test_raw_values_of_a_judgement_are_every_heat():
    raw = page_of(whole()).raw
    assert len(raw["heats"]) == 10
    assert raw["ablations"][0]["technique"] == "int8-dynamic"
    assert json.loads(json.dumps(raw)) == raw


# ---------------------------------------------------------------- in a browser


@pytest.mark.parametrize(
    "made",
    [
        some_board,
        hostile_board,
        lambda: make_board([]),
        whole,
        lambda: refused().judgement,
    ],
)
def test_a_browser_shows_it_without_complaint(browser_page, made):
    shown = browser_page(report_html(made()), width=390, dark=True)
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
    board = shown.locator("#contest-1 table", has_text="composite: ").first
    board.locator("thead button", has_text="speed").click()
    teams = board.locator("tbody td:nth-child(2)").all_inner_texts()
    assert teams[0] == "Katherine"
    board.locator("thead button", has_text="speed").click()
    assert board.locator("tbody td:nth-child(2)").all_inner_texts() == teams[::-1]
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


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
    tables = "[id|=contest] table:has(caption)"
    hidden = "each => each.map(t => t.scrollWidth - t.parentElement.clientWidth)"
    found = shown.eval_on_selector_all(tables, hidden)
    assert len(found) > 3
    assert max(found) <= 0

"""Documents of the competition: judgements, findings, rules and boards."""

import pytest
from document_reading import anchors, blocks, heads, rows, section, words
from example_boards import accuracy, judgement, refused, run, some_board
from example_pages import HOSTILE
from terminal import shown

from tinytorch.competition.board import KINDS, make_board
from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS
from tinytorch.competition.judgement import Ablation, Heat, Score
from tinytorch.competition.rules import RULES, finding
from tinytorch.reporting.competition import (
    CHAPTERS,
    DIVISION_WORDS,
    NOT_AFFILIATED,
    board_document,
    contest_text,
    findings_document,
    headline,
    judgement_document,
    plain,
    print_board,
    rules_document,
    score_text,
)
from tinytorch.reporting.document import Attachment, Bullets, Facts, Folded, Table, TrendLine
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.terminal import render

# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\x1b[31mb", "a\ufffd[31mb"), ("a\nb", "a b"), ("a\u202eb", "a\ufffdb"), (3, "3")],
)
def test_words_of_others_neither_move_the_cursor_nor_hide(text, expected):
    assert plain(text) == expected


def test_a_contest_is_named_by_its_title():
    assert contest_text("cnn_marathon", "open", 0.999) == "CNN Marathon, open, 99.9%"


def test_scores_have_their_interval():
    assert score_text(Score(1.84, 1.79, 1.9, n=10)) == "1.84x (1.79x to 1.90x)"
    assert score_text(None) == "-"


# ---------------------------------------------------------------- one run before the judge


def missing(found):
    (lines,) = blocks(section(judgement_document(found), "measures"), Bullets)
    return list(lines.items)


def measured(found):
    return {row[0]: row[1:4] for row in rows(section(judgement_document(found), "measures"))}


def test_the_headline_has_contest_score_interval_verdict_and_accuracy():
    said = "MLP Sprint, closed, 99%: 1.98x (1.95x to 2.01x): faster; accuracy kept"
    assert headline(judgement(2.0)) == (said, "good")


@pytest.mark.parametrize(
    ("found", "ending", "tone"),
    [
        (judgement(1.0, techniques=()), "inconclusive; accuracy kept", "unknown"),
        (judgement(0.5), "slower; accuracy kept", "bad"),
        (judgement(accuracy=accuracy(lost=100)), "faster; accuracy lost", "bad"),
        (judgement(accuracy=accuracy(margin=1e-3)), "accuracy inconclusive", "unknown"),
        (judgement(accuracy=None), "faster; accuracy not measured", "good"),
        (judgement(n=3), "no score: 3 heats, at least 6 are needed", "unknown"),
        (refused().judgement, "not valid: it breaks T3", "bad"),
    ],
)
def test_what_is_lost_or_doubtful_decides_the_tone(found, ending, tone):
    said, found_tone = headline(found)
    assert said.endswith(ending)
    assert found_tone == tone


def test_other_metrics_are_called_by_their_name():
    found = accuracy(metric="log-likelihood per character")
    assert headline(judgement(accuracy=found))[0].endswith("log-likelihood per character kept")


def test_the_verdict_comes_first_then_measures_ablation_and_the_run():
    found = judgement(2.0, contributions={"int8-dynamic": 1.5}, notes=("a long night",))
    document = judgement_document(found)
    assert document.banner.verdict == headline(found)[0]
    assert document.banner.sentence.startswith("accuracy: not worse")
    assert [name for name, _ in document.banner.facts] == ["team", "techniques", "heats", "round"]
    assert anchors(document) == ["measures", "techniques", "run"]
    assert document.notes == ["a long night"]
    assert missing(found) == []


def test_every_measure_has_a_row_and_what_does_not_count_says_so():
    found = judgement(event="cnn_marathon")
    assert list(measured(found)) == ["time per image", "peak memory"]
    (plot,) = blocks(judgement_document(found), ForestPlot)
    texts = {row.label: row.text for row in plot.rows}
    assert texts["peak memory"].endswith("not scored")
    assert "not scored" not in texts["time per image"]
    assert plot.rows[0].tone == "good"
    assert plot.sides == ("worse", "better")


def test_values_are_written_in_their_unit():
    found = measured(judgement(2.0, event="transformer_decathlon"))
    assert found["prefill"][0].endswith("s")
    assert found["size"][0].endswith("MiB")
    assert 3 < float(found["scaling"][0]) < 5


def test_a_measure_that_no_heat_has_is_missing_and_breaks_nothing():
    one = "p90 latency"
    heats = tuple(Heat({one: x.reference[one]}, {one: x.entry[one]}) for x in judgement().heats)
    found = judgement(heats=heats, techniques=())
    assert missing(found) == ["peak memory: no heat has it"]
    assert measured(found)["peak memory"] == ["-", "-", "-"]


def test_without_heats_there_is_no_picture_and_a_reason():
    found = judgement(n=0)
    assert blocks(judgement_document(found), ForestPlot) == []
    assert missing(found)[0] == "0 heats, at least 6 are needed"


def test_techniques_without_an_ablation_are_missing():
    found = judgement(techniques=("int8-dynamic",), accuracy=None)
    assert missing(found) == ["accuracy", "what int8-dynamic contributes: no ablation"]


@pytest.mark.parametrize(
    ("ablation", "said", "tone"),
    [
        (run(contributions={"x": 1.5}).judgement.ablations[0], "helps", "good"),
        (run(contributions={"x": 1.0}).judgement.ablations[0], "inconclusive", "unknown"),
        (run(contributions={"x": 0.5}).judgement.ablations[0], "hurts", "bad"),
        (Ablation("x", reason="it cannot be built"), "it cannot be built", "unknown"),
        (Ablation("x"), "0 heats, too few for an interval", "unknown"),
    ],
)
def test_every_technique_is_said_to_help_or_not(ablation, said, tone):
    part = section(judgement_document(judgement(ablations=(ablation,))), "techniques")
    assert rows(part)[0][2] == said
    assert blocks(part, Table)[0].rows[0].tone == tone


def test_the_facts_say_how_the_entry_was_isolated():
    (facts,) = blocks(section(judgement_document(judgement()), "run"), Facts)
    assert dict(facts.pairs)["isolation: sandbox"] == "bubblewrap"
    assert dict(facts.pairs)["team"] == "Ada"


# ---------------------------------------------------------------- findings


def test_findings_stand_before_the_numbers_with_rule_and_fix():
    found = judgement_document(refused().judgement)
    assert anchors(found)[:2] == ["findings", "measures"]
    seen = "a question that came again took 0.1 of its time"
    assert rows(section(found, "findings")) == [["T3", "fatal", seen, RULES["T3"].fix]]


def test_nothing_found_is_said():
    found = findings_document([])
    assert (found.banner.verdict, found.banner.tone) == ("No rule violations found", "good")
    assert found.blocks == []


def test_violations_come_before_warnings():
    found = findings_document([finding("W1", "no walls"), finding("E1", "torn")])
    assert (found.banner.verdict, found.banner.tone) == ("1 rule violation, 1 warning", "bad")
    assert [row[0] for row in rows(found)] == ["E1", "W1"]
    assert [row.tone for row in blocks(found, Table)[0].rows] == ["bad", "unknown"]


def test_warnings_alone_are_counted_as_such():
    banner = findings_document([finding("W1", "no walls"), finding("W2", "busy")]).banner
    assert (banner.verdict, banner.tone) == ("2 warnings", "unknown")


def test_words_of_an_entry_do_not_steer_the_terminal():
    found = judgement(findings=(finding("E8", "\x1b[2J\x1b]0;title\x07"),), notes=("\x1b[1m",))
    documents = (judgement_document(found), findings_document(found.findings))
    text = "".join(shown(render(each)) for each in documents)
    assert "\x1b" not in text
    assert "\x07" not in text


# ---------------------------------------------------------------- rules


def test_every_rule_stands_in_a_chapter():
    assert {each[0] for each in RULES} == set(CHAPTERS)
    found = rules_document(list(RULES.values()))
    assert [row[0] for place in range(len(CHAPTERS)) for row in rows(found, place)] == list(RULES)


def test_a_chapter_without_rules_is_left_out():
    found = rules_document([RULES["T3"]])
    assert [each.title for each in found.blocks] == [CHAPTERS["T"]]
    assert rows(found) == [["T3", RULES["T3"].title, RULES["T3"].fix]]


def test_events_divisions_and_tiers_come_before_the_rules():
    assert tuple(DIVISION_WORDS) == DIVISIONS
    found = rules_document([RULES["T3"]], events=EVENTS, tiers=TIERS)
    assert anchors(found) == [*EVENTS, "divisions", "rules-T"]
    assert words(found).count("not scored") == 2
    (facts,) = blocks(found, Facts)
    assert [name for name, _ in facts.pairs] == [*DIVISIONS, "tier"]
    assert "99% or 99.9% of the reference's accuracy" in words(facts)


# ---------------------------------------------------------------- boards


def part_of(board=None, part="verified", contest=1):
    return section(board_document(board or some_board()), f"contest-{contest}-{part}")


def parts_of(board):
    found = section(board_document(board), "contest-1")
    return [each.anchor.removeprefix("contest-1-") for each in found.blocks if heads(each)]


def notes_of(*runs):
    """Return what stands last in the row of the first place."""
    return rows(part_of(make_board(runs)))[0][-1]


def test_ranks_teams_and_scores_are_shown_and_shared_ranks_marked():
    found = rows(part_of())
    assert found[0][:5] == ["1", "Katherine", "2.59x", "2.54x to 2.63x", "faster"]
    assert [row[:2] for row in found] == [
        ["1", "Katherine"],
        ["2=", "Ada"],
        ["2=", "Grace"],
        ["4", "Reference"],
    ]
    table = blocks(part_of(), Table)[0]
    assert [row[0].sort for row in table.rows] == [1, 2, 2, 4]
    assert table.rows[0][2].bar == 1


def test_a_contest_has_its_verified_unverified_and_refused_runs():
    assert parts_of(some_board()) == ["verified", "unverified", "not-ranked"]
    assert rows(part_of(part="unverified"))[0][1] == "Alan"


def test_verified_and_unverified_ones_have_a_picture_and_three_tables_each():
    for part in ("verified", "unverified"):
        found = part_of(part=part)
        assert len(blocks(found, ForestPlot)) == 1
        captions = [each.caption.partition(":")[0] for each in blocks(found, Table)]
        assert [each for each in captions if each in KINDS] == list(KINDS)


def test_refused_runs_say_what_was_seen_and_what_to_do():
    board = make_board([refused()])
    assert rows(part_of(board, "not-ranked"))[0][:4] == [
        "Ada",
        "it breaks T3",
        "T3: a question that came again took 0.1 of its time",
        RULES["T3"].fix,
    ]
    assert "No valid run yet." in words(board_document(board))
    assert rows(section(board_document(board), "overview"))[0][1:3] == ["no valid run", "-"]


def test_an_event_can_be_chosen():
    found = words(board_document(some_board(), event="cnn_marathon").blocks[:3])
    assert "CNN Marathon" in found
    assert "MLP Sprint" not in found


def test_an_event_without_runs_says_so():
    banner = board_document(make_board([]), event="cnn_marathon").banner
    assert (banner.verdict, banner.tone) == ("No runs of CNN Marathon yet", "unknown")


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_can_be_chosen(kind):
    found = board_document(some_board(), kinds=(kind,))
    captions = [each.caption for each in blocks(section(found, "contest-2-verified"), Table)]
    assert captions[0].startswith(f"{kind}: ")
    assert found.subtitle == NOT_AFFILIATED
    assert heads(section(found, "contest-1-verified"))[:3] == ["rank", "team", kind]


def test_every_technique_has_a_row_with_its_credit():
    credits = {(row[0], row[1]): row[2:] for row in rows(part_of(), 2)}
    assert credits["Katherine", "fused-layers"] == [
        "1.60x (1.57x to 1.63x)",
        "3 of 3",
        "no",
        "1.57x",
    ]
    assert credits["Katherine", "int8-dynamic"][2] == "yes"
    assert rows(part_of(part="unverified"), 2)[0][2] == "not measured"


def test_where_innovation_is_capped_it_says_so():
    board = make_board([run(1.0, contributions={"int8-dynamic": 5.0})])
    found = part_of(board)
    assert rows(found)[0][-1] == "innovation capped by its speed"
    assert rows(found, 1)[0][-1].startswith("capped by its speed: the credits come to 4.")
    assert rows(found, 3)[0][-1] == "innovation capped by its speed"
    assert rows(part_of(make_board([run()])), 1)[0][-1] == ""


def test_runs_that_are_not_valid_are_counted_beside():
    board = make_board((refused(day=1), run(day=2), run(day=3, seed=3)))
    row = rows(part_of(board))[0]
    assert row[7] == "2 of 3 (20)"
    assert "1 of its runs not valid" in row[-1]


def test_notes_say_what_to_doubt():
    found = notes_of(run(2.0, day=1), run(3.0, day=2), run(day=1, description="older", seed=9))
    assert found == "its runs differ by more than chance; entry 2 of this team"
    assert notes_of(run(status="verified, seed not revealed")) == "seed not revealed yet"


def test_records_are_a_chart_and_a_table_the_newest_first():
    found = part_of()
    assert len(blocks(found, TrendLine)) == 1
    (records,) = blocks(found, Folded)
    assert [row[1] for row in rows(records)][:4] == ["Katherine", "Ada", "Grace", "Ada"]
    assert "record: Katherine since 2027-03-08 10:00 UTC" in words(found)


def test_a_single_record_has_no_chart_and_the_reference_sets_none():
    single = part_of(make_board([run()]))
    assert blocks(single, TrendLine) == []
    assert len(blocks(single, Folded)) == 1
    assert blocks(part_of(make_board([run(1.0)])), Folded) == []


def test_runs_whose_signature_was_not_checked_stand_apart_and_the_extra_is_named_once():
    signed = [run(2.0, team=team, status="signature not checked") for team in ("Ada", "Grace")]
    board = make_board(signed)
    found = board_document(board)
    assert parts_of(board) == ["not-checked"]
    assert {row[0] for row in rows(part_of(board, "not-checked"))} == {"Ada", "Grace"}
    assert all("x to " in row[1] for row in rows(part_of(board, "not-checked")))
    assert words(found).count("[sign]") == 1
    facts = dict(found.banner.facts)
    assert (facts["signatures not checked"], facts["unverified runs"]) == ("2", "0")
    assert {row[-2] for row in rows(section(found, "runs"))} == {"not checked"}


def test_the_banner_counts_what_the_board_rests_on():
    banner = board_document(some_board()).banner
    assert banner.verdict == "6 teams on the board"
    assert dict(banner.facts) == {
        "contests": "4",
        "verified runs": "10",
        "unverified runs": "1",
        "runs not ranked": "1",
        "files that do not count": "1",
    }


def test_sections_lead_from_the_overview_to_the_files():
    contests = [f"contest-{place}" for place in range(1, 5)]
    expected = ["overview", *contests, "rounds", "damaged", "runs", "files"]
    assert anchors(board_document(some_board())) == expected
    assert anchors(board_document(make_board([]))) == ["files"]


def test_the_overview_names_all_who_share_the_first_rank():
    runs = [run(2.0, team="Ada", seed=1), run(2.0, team="Grace", seed=2)]
    (row,) = rows(section(board_document(make_board(runs)), "overview"))
    assert row[1] in ("Ada, Grace", "Grace, Ada")
    assert row[3] == "verified"


def test_every_run_is_listed_the_newest_first_and_many_are_folded_away():
    board = some_board()
    part = section(board_document(board), "runs")
    assert [row[-1] for row in rows(part)] == [each.sha256[:12] for each in reversed(board.runs)]
    assert part.blocks[0].is_open
    many = make_board([run(day=day, seed=day) for day in range(1, 25)])
    assert not section(board_document(many), "runs").blocks[0].is_open


def test_the_terminal_has_rounds_and_damaged_files_and_no_attachments():
    found = board_document(some_board())
    text = shown(render(found), 160)
    assert "not revealed yet" in text
    assert "- mlp_sprint/eve/x.json\n  - its hash is not that of its contents" in text
    assert len(blocks(found, Attachment)) == 2
    assert "board.csv" not in text


def test_the_classic_way_prints(capsys):
    assert print_board(some_board(), "composite", event="mlp_sprint") is None
    assert "composite: 70% speed, 30% innovation" in capsys.readouterr().out


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    seen = judgement(2.0, event="transformer_decathlon", contributions={"int8-dynamic": 1.5})
    documents = [
        judgement_document(seen),
        judgement_document(refused().judgement),
        rules_document(list(RULES.values()), events=EVENTS, tiers=TIERS),
        *(board_document(some_board(), kinds=(kind,)) for kind in KINDS),
    ]
    for each in documents:
        assert max(map(len, shown(render(each), width).splitlines())) <= width


def test_markdown_has_the_rankings_and_names_are_text():
    text = report_markdown(some_board())
    assert "| 1 | Katherine | 2.59x | 2.54x to 2.63x | faster |" in text
    found = report_markdown(judgement(round_name=HOSTILE, notes=(HOSTILE,)))
    assert HOSTILE not in found

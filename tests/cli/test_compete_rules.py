import json

from project_files import ROOT

from tinytorch.cli.main import main
from tinytorch.competition.events import DIVISIONS, EVENTS
from tinytorch.competition.rules import RULES


def test_all_rules_and_events_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["compete", "rules"]) == 0
    shown = capsys.readouterr().out
    assert all(rule.id in shown and rule.title in shown for rule in RULES.values())
    assert all(event.title in shown for event in EVENTS.values())
    assert all(f"\n{division} " in shown for division in DIVISIONS)


def test_one_rule_is_shown_with_what_to_do(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["compete", "rules", "a2"]) == 0
    shown = capsys.readouterr().out
    assert RULES["A2"].title in shown
    assert RULES["A2"].fix in shown
    assert "MLP Sprint" not in shown


def test_an_unknown_rule_names_the_known_ones(capsys):
    assert main(["compete", "rules", "X9"]) == 2
    assert "no rule 'X9'; there are E1, E2" in capsys.readouterr().err


def test_json_has_rules_events_divisions_and_tiers(capsys):
    assert main(["compete", "rules", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == "compete rules"
    assert [each["id"] for each in found["rules"]] == list(RULES)
    assert [each["name"] for each in found["events"]] == list(EVENTS)
    assert (found["divisions"], found["tiers"]) == (["closed", "open", "learner"], [0.99, 0.999])


def test_the_page_of_rules_has_the_same_table():
    page = (ROOT / "docs" / "competition.md").read_text("utf-8")
    table = page.partition("<!-- rules -->\n")[2].partition("\n<!-- end of rules -->")[0]
    head = ["| rule | what holds | if not |", "|---|---|---|"]
    rows = [f"| {rule.id} | {rule.title} | {rule.fix} |" for rule in RULES.values()]
    assert table.splitlines() == head + rows


def test_the_page_of_rules_names_every_event_measure_and_division():
    page = " ".join((ROOT / "docs" / "competition.md").read_text("utf-8").split())
    assert all(f"`{event.name}`" in page for event in EVENTS.values())
    assert all(each.name in page for event in EVENTS.values() for each in event.measures)
    assert all(f"| `{division}` |" in page for division in DIVISIONS)
    assert "not affiliated with MLCommons" in page

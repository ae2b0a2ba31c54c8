"""A judgement becomes a record and comes back."""

import json
from dataclasses import replace

import pytest
from example_judgements import SYSTEM, kept_entry, kept_judgement, some_accuracy, some_heats
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.competition.entry import Technique
from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS
from tinytorch.competition.judgement import Ablation, Heat
from tinytorch.competition.judgement_record import as_record, claims_verified, judgement_in
from tinytorch.competition.rules import RULES, finding
from tinytorch.errors import RecordError, SettingError
from tinytorch.records.record import parse_record

words = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=30)
names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8})?", fullmatch=True)
moments = st.datetimes().map(lambda moment: moment.isoformat(timespec="microseconds") + "+00:00")
values = st.floats(min_value=1e-12, max_value=1e12)


@st.composite
def entries(draw):
    found = draw(st.lists(names, unique=True, max_size=3))
    transforms = st.lists(st.tuples(names, st.dictionaries(names, st.integers(0, 9))), max_size=2)
    has_code = draw(st.booleans())
    return kept_entry(
        team=draw(st.from_regex(r"[A-Za-z]\w{0,20}", fullmatch=True)),
        event=draw(st.sampled_from(sorted(EVENTS))),
        division=draw(st.sampled_from(DIVISIONS)),
        tier=draw(st.sampled_from(TIERS)),
        techniques=tuple(Technique(name, tuple(draw(transforms))) for name in found),
        code="model.py:make" if has_code else None,
        weights=None if has_code else draw(st.sampled_from([None, "model.safetensors"])),
        description=draw(words),
    )


@st.composite
def judgements(draw):
    entry = draw(entries())
    measures = [each.name for each in EVENTS[entry.event].measures]
    side = st.fixed_dictionaries(dict.fromkeys(measures, values))
    heats = st.lists(st.builds(Heat, side, side), max_size=8).map(tuple)
    accuracy = st.sampled_from([None, some_accuracy(entry.event, entry.tier, lost=3)])
    found = st.builds(finding, st.sampled_from(sorted(RULES)), words, words)
    return kept_judgement(
        entry=entry,
        heats=draw(heats),
        accuracy=draw(accuracy),
        findings=tuple(draw(st.lists(found, max_size=3))),
        ablations=tuple(Ablation(each.name, draw(heats), draw(words)) for each in entry.techniques),
        round_name=draw(names),
        commitment=draw(words),
        data_sha256=draw(words),
        protection=draw(st.dictionaries(words, words, max_size=3)),
        seconds_used=draw(values),
        created_at=draw(moments),
        notes=tuple(draw(st.lists(words, max_size=3))),
    )


@settings(max_examples=25)
@given(judgements(), st.sampled_from(["unverified", "verified"]))
def test_a_judgement_comes_back_as_it_was(judgement, status):
    record = as_record(judgement, status=status)
    again = parse_record(json.dumps(record.to_dict()))
    assert judgement_in(again) == judgement
    assert again.details["status"] == status


def test_a_record_says_what_others_look_for():
    record = as_record(kept_judgement(2.0))
    assert record.kind == "competition"
    assert record.name == "mlp_sprint/closed/0.99/Ada"
    assert record.settings["heats"] == 10
    assert record.samples["p90 latency"].unit == "s"
    assert record.samples["reference peak memory"].unit == "B"
    assert record.details["score"]["value"] == pytest.approx(2.0, rel=0.02)


def test_a_judgement_without_a_machine_gets_this_one():
    assert as_record(kept_judgement(system={})).environment["usable_cores"] >= 1


def test_a_judgement_without_a_time_gets_one():
    assert as_record(kept_judgement(created_at="")).created_at > "2026"


def test_letters_that_steer_a_terminal_are_replaced():
    judgement = kept_judgement(findings=(finding("E8", "it said \x1b[2J"),), notes=("\x07",))
    judgement = replace(judgement, system=SYSTEM | {"cpu_model": "x\0", "caches": [{"\r": 1}]})
    found = judgement_in(as_record(judgement))
    assert found.findings[0].seen == "it said \N{REPLACEMENT CHARACTER}[2J"
    assert found.notes == ("\N{REPLACEMENT CHARACTER}",)
    assert found.system["cpu_model"] == "x\N{REPLACEMENT CHARACTER}"


def test_a_heat_with_senseless_numbers_is_kept_out_where_the_judge_saw_why():
    heats = some_heats()
    turned = replace(heats[3], entry={"p90 latency": -1.0, "peak memory": 5.0})
    heats = (*heats[:3], turned, *heats[4:])
    with pytest.raises(SettingError, match=r"cannot be kept: p90 latency of the entry is -1\.0"):
        as_record(kept_judgement(heats=heats))
    found = judgement_in(as_record(kept_judgement(heats=heats, findings=(finding("T1", "seen"),))))
    assert len(found.heats) == 9
    assert found.notes[-1].startswith("1 heats are left out, the first because p90 latency")


@pytest.mark.parametrize(
    ("code", "rule", "is_trusted"),
    [(None, "W2", True), ("model.py:make", "W2", True), ("model.py:make", "E6", False)],
)
def test_code_is_verified_only_where_it_was_trusted(code, rule, is_trusted):
    judgement = kept_judgement(entry=kept_entry(code=code), findings=(finding(rule, "seen"),))
    assert claims_verified(as_record(judgement, status="verified")) is is_trusted
    assert not claims_verified(as_record(judgement))


def changed(path, value):
    fields = as_record(kept_judgement()).to_dict()
    del fields["hash"]
    place = fields
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return parse_record(json.dumps(fields))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["kind"], "comparison", "a record of kind 'comparison'"),
        (["name"], "mlp_sprint/closed/0.99/Eve", "is called .*Eve', but is of .*Ada'"),
        (["details", "schema"], 2, r"schema: expected 1 .*newer tinytorch.*, got 2"),
        (["details", "schema"], "1", "schema: expected 1"),
        (["details", "status"], "official", "Details.status: .*'official'"),
        (["details", "status"], None, "Details.status is missing"),
        (["details", "more"], 1, "Details.more: expected no such field"),
        (["details", "entry", "manifest", "event"], "chess", "event is 'chess'"),
        (["details", "entry", "manifest", "team"], "E/ve", "leave out /"),
        (["details", "entry", "sha256"], 5, "entry.sha256: expected text, got 5"),
        (["details", "findings"], {}, "findings: expected a list"),
        (["details", "findings"], [5], r"findings\[0\]: expected an object, got 5"),
        (["details", "protection"], {"files": 1}, "protection.files: expected text, got 1"),
        (["details", "seconds_used"], "long", "seconds_used: expected a number, got 'long'"),
        (["details", "round", "name"], 7, "round.name: expected text, got 7"),
        (["details", "tinytorch"], "\u202e", r"the letter '\\u202e', which cannot be seen"),
        (["settings", "event"], "cnn_marathon", "the settings are .*cnn_marathon.*mlp_sprint"),
        (["settings", "heats"], 9, "10 values of .* in 9 heats"),
        (["settings", "heats"], True, "heats: expected a whole number, got True"),
        (["settings", "protocol"], 2, "protocol=2.*protocol=1"),
        (["settings", "seed"], 2, "RunSettings.seed: expected no such field"),
        (["samples", "p90 latency"], None, "not those of MLP Sprint: see p90 latency"),
        (["samples", "p90 latency", "unit"], "ms", "is in 'ms', not in 's'"),
        (["samples", "p90 latency", "values", 2], 0.0, "heat 3: p90 latency of the entry is 0.0"),
    ],
)
def test_every_other_record_is_refused_in_plain_words(path, value, message):
    with pytest.raises(RecordError, match=message):
        judgement_in(changed(path, value))

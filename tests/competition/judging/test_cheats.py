"""Known cheats: each is caught by a rule, or gains nothing because of how the judge works.

The entries in `cheats/` are real code, judged as anybody's. Fewer questions than in a real run are
enough for them. "Gains nothing" means: nothing is found, and it is not shown to be clearly faster
than the reference, which it computes with.
"""

import importlib.util
import py_compile
import shutil
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from parts import require_part, require_sandbox

from tinytorch.competition import judge as bench
from tinytorch.competition.entry import Entry, Technique, read_entry, write_entry
from tinytorch.competition.entry_checks import check_entry, contender_of
from tinytorch.competition.events import EVENTS, draw_questions
from tinytorch.competition.judge import judge
from tinytorch.competition.sandbox.contender import Limits
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.models.zoo import load_zoo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="contenders are confined on Linux"),
]
require_sandbox()
CHEATS = Path(__file__).parent / "cheats"
EXAMPLES = {"mlp_sprint": 240, "cnn_marathon": 500, "transformer_decathlon": 40}
HEATS, FEW = 6, 2
"""What shows in a single answer shows in few heats; an interval needs six."""
GAIN = 1.2
"""What these cheats are after is several times as much, and a busy machine shows less by chance."""


@pytest.fixture(autouse=True)
def short_events(monkeypatch):
    """Ask fewer questions, and draw them once for all tests."""
    for name, examples in EXAMPLES.items():
        monkeypatch.setitem(EVENTS, name, replace(EVENTS[name], examples=examples))
    monkeypatch.setattr(bench, "draw_questions", drawn)
    monkeypatch.setattr(bench, "FEWEST_HEATS", FEW)


@lru_cache(maxsize=3)
def drawn(event, round, *, heats):
    return draw_questions(event, round, heats=heats)


def entered(folder, cheat, *techniques, **changes):
    """Write an entry with the code of a cheat, and read it."""
    folder = folder / "entry"
    fields = {"team": "Mallory", "event": "mlp_sprint", "division": "closed", "tier": 0.99}
    declared = tuple(map(Technique, techniques))
    entry = Entry(**{**fields, "techniques": declared, "code": "model.py:make", **changes})
    write_entry(entry, folder)
    shutil.copy(CHEATS / f"{cheat}.py", folder / "model.py")
    return read_entry(folder)


def judged(entry, *, heats=HEATS, **changes):
    return judge(entry, heats=heats, ablations=False, trust=True, **changes)


def broken_rules(judgement):
    return {each.rule for each in judgement.findings if each.is_fatal}


def rules_against(entry, *, heats=FEW, **changes):
    return broken_rules(judged(entry, heats=heats, **changes))


def assert_gains_nothing(judgement):
    assert judgement.is_valid, judgement.findings
    assert judgement.score.low < GAIN


# ---------------------------------------------------------------- honest ones


def test_an_honest_entry_in_plain_numpy_passes(tmp_path):
    judgement = judged(entered(tmp_path, "honest"))
    assert judgement.is_valid, judgement.findings
    assert judgement.accuracy.difference == 0
    assert judgement.score.high > 1


@pytest.mark.parametrize("division", ["open", "learner"])
def test_an_honest_entry_passes_in_the_other_divisions(tmp_path, division):
    assert rules_against(entered(tmp_path, "honest", division=division)) == set()


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("cheat", "rules"),
    [
        ("replays_warm_up", {"A2", "A4"}),
        ("fills_later", {"A4"}),
        ("behaves_while_checked", {"A2", "A4"}),
        ("gives_nan", {"A1"}),
        ("gives_a_constant", {"A3"}),
        ("changes_questions", {"T5"}),
        ("keeps_answers", {"T3"}),
        ("works_on", {"T4"}),
    ],
)
def test_it_is_caught(tmp_path, cheat, rules):
    assert rules <= rules_against(entered(tmp_path, cheat), heats=HEATS if "T3" in rules else FEW)


def test_good_behaviour_in_a_check_is_no_excuse(tmp_path):
    entry = entered(tmp_path, "behaves_while_checked")
    assert not any(each.is_fatal for each in check_entry(entry, trust=True))
    assert "A2" in rules_against(entry)


@pytest.mark.parametrize(
    "cheat",
    ["hides_what_it_keeps", "computes_lazily", "forges_intact", "knows_public_questions"],
)
def test_it_gains_nothing_by_its_answers(tmp_path, cheat):
    assert_gains_nothing(judged(entered(tmp_path, cheat)))


@pytest.mark.parametrize(
    ("cheat", "technique", "precision"),
    [
        ("rounds_weights", "half", "float32"),
        ("rounds_weights", "eighth", "float32"),
        ("prunes", "pruned-10", "float32"),
        ("prunes", "pruned-50", "float32"),
        ("prunes", "pruned-50", "int8"),
    ],
)
def test_less_precision_than_declared_is_caught(tmp_path, cheat, technique, precision):
    entry = entered(tmp_path, cheat, technique, precision=precision)
    assert "A4" in rules_against(entry)


def test_a_tenth_of_the_weights_can_be_pruned_below_int8(tmp_path):
    """A known gap: from outside it looks like rounding, which is what the tolerance is for."""
    entry = entered(tmp_path, "prunes", "pruned-10", precision="int8")
    assert "A4" not in rules_against(entry)


def test_pruning_by_a_declared_technique_is_caught_before_it_runs():
    pruned = Technique("own", (("Prune", {"sparsity": 0.5}),))
    entry = Entry("Mallory", "mlp_sprint", "closed", 0.99, (pruned,))
    assert rules_against(entry) == {"E5"}


def test_pruned_weights_in_a_file_are_caught_before_they_run(tmp_path):
    model = load_zoo("mlp").model
    first = next(iter(model.parameters()))
    first.data[abs(first.data) < 0.01] = 0
    write_entry(Entry("Mallory", "mlp_sprint", "closed", 0.99, weights="own.safetensors"), tmp_path)
    save_checkpoint(tmp_path / "own.safetensors", model)
    assert rules_against(read_entry(tmp_path)) == {"E4"}


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize(
    "cheat", ["stops_the_workers_clock", "patches_builtins", "forges_headers", "answers_by_itself"]
)
def test_a_stamp_without_time_is_caught(tmp_path, cheat):
    judgement = judged(entered(tmp_path, cheat))
    assert "T2" in broken_rules(judgement)  # and T1, where a call takes long enough
    assert judgement.score.low < GAIN


def test_a_clock_that_is_stopped_now_and_then_gains_nothing(tmp_path):
    """The time is charged call by call; whether it is called hidden depends on how long it is."""
    judgement = judged(entered(tmp_path, "hides_every_third_call"))
    assert broken_rules(judgement) <= {"T1"}
    assert judgement.score.low < GAIN


@pytest.mark.parametrize("cheat", ["patches_clocks", "patches_libraries"])
def test_patching_what_others_call_gains_nothing(tmp_path, cheat):
    assert_gains_nothing(judged(entered(tmp_path, cheat)))


# ---------------------------------------------------------------- looking, and leaving its place


def test_nothing_can_be_found_in_files(tmp_path):
    """Its answers would be no numbers if it had found anything."""
    entry = entered(tmp_path, "peeks_at_files")
    others = tmp_path / "another entry"
    others.mkdir()
    secrets = [tmp_path / "round.json", others / "model.py", tmp_path / "results.json"]
    for each in secrets:
        each.write_text("secret", encoding="utf-8")
    # Nor what lies in its own folder and is not part of its hash: that could be anything.
    for name in ("results/code.py", ".hidden", "__pycache__/more.bin"):
        secrets.append(entry.folder / name)
        secrets[-1].parent.mkdir(exist_ok=True)
        secrets[-1].write_text("secret", encoding="utf-8")
    listed = "\n".join(map(str, secrets))
    (entry.folder / "paths.txt").write_text(listed, encoding="utf-8")
    assert_gains_nothing(judged(entry))


def test_a_compiled_copy_of_other_code_is_not_run(tmp_path):
    """Python would take it for the code that everybody sees, and hashes leave it out."""
    entry = entered(tmp_path, "computes_lazily")
    py_compile.compile(
        str(CHEATS / "gives_a_constant.py"),
        cfile=importlib.util.cache_from_source(str(entry.folder / "model.py")),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert_gains_nothing(judged(entry))


def test_what_is_forbidden_is_refused(tmp_path):
    """Processes, connections, files, signals, cores: its answers say whether any of them works."""
    entry = entered(tmp_path, "tries_everything")
    assert_gains_nothing(judged(entry))
    assert sorted(each.name for each in entry.folder.iterdir()) == ["entry.json", "model.py"]


@pytest.mark.parametrize("cheat", ["peeks_at_memory", "reads_ahead"])
def test_neither_targets_nor_further_questions_are_in_its_process(tmp_path, cheat):
    assert_gains_nothing(judged(entered(tmp_path, cheat)))


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("leaving", "T6"),
        ("looping", "T6"),
        ("hoarding", "T6"),
        ("giant-answers", "A1"),
        ("no-axes", "A1"),
        ("other-shapes", "A1"),
        ("words", "A1"),
        ("huge-numbers", "A1"),
        ("truths", "A1"),
        ("raising", "E8"),
        ("a-deep-note", "A1"),
    ],
)
def test_misbehaviour_is_a_finding_and_the_judge_goes_on(tmp_path, how, rule):
    limits = Limits(memory_bytes=1 << 30, answer_s=5.0)
    assert rules_against(entered(tmp_path, "misbehaves", how), limits=limits) == {rule}


def test_the_size_of_code_is_counted_and_not_asked_for(tmp_path):
    entry = entered(tmp_path, "misbehaves", "an-odd-description")
    with ContenderProcess(contender_of(entry)) as process:
        size = process.load().file_bytes
    assert size > sum(each.data.nbytes for each in load_zoo("mlp").model.parameters())


# ---------------------------------------------------------------- the decathlon, and learners


@pytest.mark.parametrize(
    "cheat", ["writes_garbage", "reads_its_own_garbage", "writes_with_a_table"]
)
def test_texts_that_the_model_would_not_write_are_caught(tmp_path, cheat):
    entry = entered(tmp_path, cheat, event="transformer_decathlon")
    assert "A5" in rules_against(entry)


@pytest.mark.parametrize("division", ["open", "learner"])
def test_a_book_that_was_learned_by_heart_is_caught(tmp_path, division):
    entry = entered(tmp_path, "knows_the_book", event="transformer_decathlon", division=division)
    assert "A6" in rules_against(entry, heats=HEATS)


def test_a_hidden_framework_is_caught_in_the_learner_division(tmp_path):
    require_part("torch")
    entry = entered(tmp_path, "uses_another_framework", division="learner")
    assert not any(each.is_fatal for each in check_entry(entry, trust=True, run=False))
    assert "E7" in rules_against(entry)


@pytest.mark.parametrize(
    "line", ["import importlib", "exec('import torch')", "__import__('torch')", "import torch"]
)
def test_a_framework_that_can_be_read_is_caught_before_it_runs(tmp_path, line):
    entry = entered(tmp_path, "honest", division="learner")
    code = entry.folder / "model.py"
    code.write_text(f"{line}\n{code.read_text(encoding='utf-8')}", encoding="utf-8")
    assert rules_against(read_entry(entry.folder)) == {"E7"}

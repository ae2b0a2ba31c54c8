"""What every command says in JSON: keys, types, and the values that nothing measures.

Rebuild all of them after a change that is meant:

    TINYTORCH_UPDATE_GOLDENS=1 pytest tests/house/test_command_goldens.py -m ""

Of measured values only the type stays. null fits every type, and an empty list or mapping every
other one: a note or an interval is there or not, as a run finds it.
"""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from example_boards import ROUNDS, some_runs
from example_monitors import changed, snapshot
from git_projects import BENCH, project
from parts import require_part

from tinytorch.cli.main import main
from tinytorch.competition import verification as records_folder

GOLDENS = Path(__file__).parent / "goldens"
UPDATE = os.environ.get("TINYTORCH_UPDATE_GOLDENS") == "1"


def words(text):
    return frozenset(text.split())


PINNED = words("""
    command schema schema_version name model framework device mode dtype examples unit kind path
    depth is_leaf macs flops causal_macs recomputed_macs other_flops bytes_moved self_macs
    self_flops self_bytes backward_macs parameters parameter_bytes activation_bytes all_flops
    peak_bytes self_largest_bytes buffer_bytes trainable_count size nbytes is_trainable is_buffer
    phase family convention axis usual at target baseline_name candidate_name goal transform
    layer what metric margin cache clock seed
""")
"""Keys whose values are no measurements."""
SETTINGS = "settings"
"""The key of what was asked for: everything below it is pinned."""
MEASURED = words("""
    environment ceilings time pace rounds hotspots bottleneck roofline ceiling limited_by timeline
    advice series
""")
"""Keys below which nothing is pinned; `advice` only where it is a list."""
MAPS = words("""
    libraries caches threads not_measured cache_bytes peak_flops bandwidth ridge measured devices
    not_predicted
""")
"""Keys of mappings whose own keys depend on the machine or on what was found."""
IN_ORDER = {"layers", "tensors", "attempts", "plans", "steps", "resources", "targets"}
"""Keys of lists whose elements come in the same order and number each time."""
ANY = "*"


def masked(value, key="", *, is_measured=False):
    """Return the structure of a result, with values only where nothing is measured."""
    if key == SETTINGS and not is_measured:
        return value
    if key in MEASURED and (key != "advice" or isinstance(value, list)):
        is_measured = True
    if isinstance(value, dict):
        inside = {each: masked(value[each], each, is_measured=is_measured) for each in value}
        return {ANY: merged(inside.values())} if key in MAPS and inside else inside
    if isinstance(value, list):
        inside = [masked(each, key, is_measured=is_measured) for each in value]
        is_ordered = key in IN_ORDER and not is_measured
        return inside if is_ordered or not inside else [merged(inside)]
    if key in PINNED and not is_measured:
        return value
    return "null" if value is None else f"<{type(value).__name__}>"


def merged(masks):
    """Return what several structures have in common: types, and values where all are equal."""
    first, *others = masks
    for other in others:
        first = _merged(first, other)
    return first


def _merged(one, other):
    if one == other or is_nothing(other):
        return one
    if is_nothing(one):
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            each: _merged(one.get(each, "null"), other.get(each, "null")) for each in one | other
        }
    if isinstance(one, list) and isinstance(other, list):
        return [merged([*one, *other])]
    return "|".join(sorted(set(type_of(one).split("|")) | set(type_of(other).split("|"))))


def type_of(mask):
    return mask if isinstance(mask, str) and mask.startswith("<") else f"<{type(mask).__name__}>"


def is_nothing(mask):
    return mask in ("null", None, [], {})


def exact(value, folder):
    """Return a result that nothing measures, without paths, hashes and the version."""
    text = json.dumps(value).replace(json.dumps(str(folder))[1:-1], "<folder>")
    text = re.sub(r'(?<=")[0-9a-f]{64}(?=")', "<hash>", text)
    return json.loads(text) | {"version": "<str>"}


def differences(golden, found, place="result"):
    """Yield where a structure is not that of its golden file."""
    if is_nothing(golden) or is_nothing(found):
        return
    if isinstance(golden, dict) and isinstance(found, dict):
        for missing in sorted(golden.keys() - found.keys()):
            yield f"{place}.{missing} is missing"
        for new in sorted(found.keys() - golden.keys()):
            yield f"{place}.{new} is new"
        for both in sorted(golden.keys() & found.keys()):
            yield from differences(golden[both], found[both], f"{place}.{both}")
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for at, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from differences(one, other, f"{place}[{at}]")
    elif golden != found and not fits(golden, found):
        yield f"{place} is {found!r}, not {golden!r}"


def fits(golden, found):
    """Return whether one of the types of a golden file was found: a list may hold fewer of them."""
    if not (isinstance(golden, str) and golden.startswith("<") and isinstance(found, str)):
        return False
    return set(type_of(found).split("|")) <= set(golden.split("|"))


def check_golden(name, found):
    """Compare with the golden file of a command, or write it."""
    file = GOLDENS / f"{name}.json"
    if UPDATE:
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    golden = json.loads(file.read_text("utf-8"))
    assert list(differences(golden, json.loads(json.dumps(found)))) == []


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Give ``run(*words) -> result`` with records and files in a folder of this test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "records.sqlite"))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(*words, codes=(0,)):
        capsys.readouterr()
        code = main([*words, "--json", "--quiet"])
        captured = capsys.readouterr()
        assert code in codes, captured.err
        return json.loads(captured.out)

    return run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("optimize_list", ["optimize", "mlp", "--list"]),
        ("compete_rules", ["compete", "rules"]),
        ("compete_rule", ["compete", "rules", "A2"]),
        ("compete_new", ["compete", "new", "mine", "--event", "mlp_sprint", "--team", "T"]),
        ("learn", ["learn"]),
        ("learn_start", ["learn", "start", "profiling", "--name", "T"]),
    ],
)
def test_what_measures_nothing_is_the_same_to_the_letter(run, tmp_path, name, words):
    check_golden(name, exact(run(*words), tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("profile", ["profile", "mlp", "--runs", "3", "--no-ceilings"]),
        ("profile_gpt", ["profile", "gpt", "--runs", "3", "--no-ceilings"]),
        ("profile_training", ["profile", "mlp", "--training", "--runs", "3", "--no-ceilings"]),
        ("profile_on", ["profile", "mlp", "--runs", "3", "--no-ceilings", "--on", "h100"]),
        ("advise", ["advise", "mlp", "--sizes", "1,2,4", "--budget", "0.3"]),
        ("predict", ["predict", "mlp", "--at", "64", "--sizes", "1,2,4,8", "--budget", "0.3"]),
    ],
)
def test_what_is_measured_of_one_model_keeps_its_structure(run, name, words):
    check_golden(name, masked(run(*words)))


def test_an_export_keeps_its_structure(run):
    for part in ("onnx", "onnxscript", "onnxruntime"):
        require_part(part)
    check_golden("export", masked(run("export", "mlp", "--output", "out")))


@pytest.mark.slow
def test_the_machine_keeps_its_structure(run):
    check_golden("machine", masked(run("machine")))


def test_a_check_of_an_entry_keeps_its_structure(run, tmp_path):
    run("compete", "new", "mine", "--event", "mlp_sprint", "--team", "T")
    check_golden("compete_check", exact(run("compete", "check", "mine"), tmp_path))


def test_a_board_keeps_its_structure(run, monkeypatch):
    found = SimpleNamespace(records=some_runs(), rounds=ROUNDS, damaged=())
    monkeypatch.setattr(records_folder, "read_folder", lambda path: found)
    check_golden("compete_board", masked(run("compete", "board", "submissions")))


def test_a_report_of_a_monitor_keeps_its_structure(run, tmp_path):
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(snapshot(changes=[changed("layer")]).to_dict()), "utf-8")
    check_golden("monitor_report", masked(run("monitor", "report", str(file))))


@pytest.mark.slow
def test_a_comparison_and_what_is_kept_of_it_keep_their_structure(run):
    codes = (0, 1, 3)  # whatever this machine shows of one model against itself
    words = ["compare", "mlp", "mlp", "--budget", "0.3", "--save"]
    check_golden("compare", masked(run(*words, codes=codes)))
    check_golden("history", masked(run("history")))
    check_golden("history_check", masked(run("history", "--check")))
    check_golden("report", masked(run("report", "last")))


def test_a_comparison_without_evidence_keeps_its_structure(run):
    words = ["compare", "mlp", "mlp", "--budget", "0.1", "--no-evidence"]
    check_golden("compare_times", masked(run(*words, codes=(0, 1, 3))))


@pytest.mark.slow
def test_an_optimization_keeps_its_structure(run):
    words = ["optimize", "mlp", "--only", "int8-dynamic", "--budget", "1", "--no-combinations"]
    check_golden("optimize", masked(run(*words, codes=(0, 3))))


def test_a_suite_keeps_its_structure(run, tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'name = "small"\nbudget_s = 0.05\n[[workload]]\ntarget = "mlp"\nbatch_sizes = [1, 4]\n'
        'backends = ["numpy"]\nscenarios = ["single-stream"]\n',
        "utf-8",
    )
    check_golden("bench_list", masked(run("bench", str(suite), "--list")))
    check_golden("bench", masked(run("bench", str(suite))))


@pytest.mark.slow
def test_a_gate_keeps_its_structure(run, tmp_path, monkeypatch):
    folder = project(tmp_path / "project", bench=BENCH)
    monkeypatch.chdir(folder)
    words = ["gate", "--against", "main", "bench.py:make", "--budget", "0.5"]
    check_golden("gate", masked(run(*words, codes=(0, 1, 3))))


@pytest.mark.parametrize(
    ("golden", "found", "count"),
    [
        ({"a": 1}, {"a": 1}, 0),
        ({"a": 1}, {"a": 2}, 1),
        ({"a": 1}, {"b": 1}, 2),
        ({"a": "<float>"}, {"a": "<int>"}, 1),
        ({"a": "<float>|<int>"}, {"a": "<int>"}, 0),
        ({"a": "<float>"}, {"a": "null"}, 0),
        ([{"a": "<float>"}], [], 0),
        ([{"a": "<float>"}], [{"a": "<str>"}], 1),
        (["x", "y"], ["x"], 1),
    ],
)
def test_the_check_sees(golden, found, count):
    assert len(list(differences(golden, found))) == count

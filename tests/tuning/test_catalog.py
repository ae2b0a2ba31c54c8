from dataclasses import replace
from itertools import takewhile

import pytest
from parts import require_part
from project_files import ROOT

from tinytorch.errors import SettingError
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import GOALS, Transform
from tinytorch.tuning.catalog import CATALOG, entries_for, find_entries, left_out, risk_of


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry):
    assert entry.transforms
    assert all(isinstance(each, Transform) for each in entry.transforms)
    assert entry.serves <= set(GOALS)
    assert entry.serves
    assert entry.about
    assert [each["transform"] for each in entry.to_dict()["transforms"]] == [
        type(each).__name__ for each in entry.transforms
    ]


def rows_of(page, first):
    """Return the cells of the table of a page whose first column has this title."""
    lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    table = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_documentation_lists_the_catalog():
    models = {"core": "TinyTorch", "pytorch": "PyTorch"}
    places = {("cpu", "cuda"): "", ("cpu",): " on a CPU", ("cuda",): " on a GPU"}
    expected = [
        [
            f"`{each.name}`",
            each.about,
            each.risk,
            each.role,
            ", ".join(models[name] for name in each.frameworks) + places[each.devices],
        ]
        for each in CATALOG
    ]
    assert rows_of("optimizing.md", "entry") == expected


def test_names_are_unique_and_fit_a_command_line():
    names = [each.name for each in CATALOG]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name for name in names)


def test_rivals_stand_at_the_same_place():
    places = {}
    for each in CATALOG:
        places.setdefault(each.role, set()).add(each.place)
    assert all(len(found) == 1 for found in places.values())


def test_only_what_fits_the_framework_the_device_and_the_goal_is_given():
    names = {each.name for each in entries_for(load_workload("mlp"), "latency")}
    assert "compiled-kernels" in names
    assert not names & {"compiled", "captured", "bfloat16", "channels-last"}
    assert "compiled-kernels" not in {
        each.name for each in entries_for(load_workload("mlp"), "size")
    }


@pytest.mark.parametrize(
    ("name", "goal", "words"),
    [
        (
            "channels-last",
            "latency",
            "channels-last needs a model of pytorch, this is one of core",
        ),
        ("fused-layers", "size", "fused-layers does not serve the goal size"),
    ],
)
def test_where_nothing_is_left_of_what_was_asked_for_the_reason_is_given(name, goal, words):
    with pytest.raises(SettingError, match=f"there is nothing to try: {words}"):
        entries_for(load_workload("mlp"), goal, only=(name,))


def test_every_name_that_does_not_fit_is_left_out_with_its_reason():
    mlp = load_workload("mlp")
    named = ("int8-dynamic", "channels-last", "fused-layers")
    assert left_out(mlp, "size", only=named) == (
        "channels-last needs a model of pytorch, this is one of core",
        "fused-layers does not serve the goal size",
    )
    assert left_out(mlp, "size", only=named, skip=("channels-last", "fused-layers")) == ()
    assert left_out(mlp, "size") == ()  # nobody named what does not fit


def test_only_and_skip_choose():
    mlp = load_workload("mlp")
    chosen = entries_for(mlp, "latency", only=("int8-dynamic", "low-rank"), skip=("low-rank",))
    assert [each.name for each in chosen] == ["int8-dynamic"]


def test_pytorch_models_get_their_own_entries():
    torch = require_part("torch")
    mlp = load_workload("mlp")
    model = torch.nn.Linear(4, 4)
    found = entries_for(replace(mlp, model=model, inputs=(torch.ones(1, 4),)), "latency")
    names = {each.name for each in found}
    assert {"compiled", "bfloat16-layers", "inference-mode"} <= names
    assert not names & {"compiled-kernels", "captured", "fused-layers", "static-generation"}


def test_what_is_made_for_a_class_of_models_is_for_no_others():
    torch = require_part("torch")
    case = Workload("case", torch.nn.Linear(4, 4), (torch.ones(1, 4),))
    words = r"needs a Generation, made by tinytorch\.perf\.memoization\.generation_call"
    with pytest.raises(SettingError, match=words):
        entries_for(case, "latency", only=("static-generation",))
    model = type("Generation", (torch.nn.Linear,), {})(4, 4)
    found = entries_for(replace(case, model=model), "latency")
    assert "static-generation" in {each.name for each in found}


def test_a_name_that_nobody_knows_has_a_neighbour():
    with pytest.raises(SettingError, match="did you mean 'int8-dynamic'"):
        find_entries(["int8-dynamc"])
    with pytest.raises(SettingError, match="there are fewer-channels, "):
        find_entries(["zzz"])


def test_the_risk_of_a_stack_is_the_largest_of_its_entries():
    exact, rounding, approximate = find_entries(["fold-batch-norm", "int8-dynamic", "low-rank"])
    assert risk_of([]) == risk_of([exact]) == "exact"
    assert risk_of([rounding, exact]) == "rounding"
    assert risk_of([exact, approximate, rounding]) == "approximate"

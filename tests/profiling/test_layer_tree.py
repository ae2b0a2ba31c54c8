import dataclasses

import pytest
from example_profiles import MS, example_profile, layer_calls, training_profile

from tinytorch.errors import SettingError
from tinytorch.models.adapter import ParameterSpec
from tinytorch.profiling.layers import layer_rows, shared_name


def shown(rows):
    return [(row.level, row.label) for row in rows]


def stack(kinds, *, sizes=None):
    """Give a profile of a Sequential with layers of these kinds, 1 ms each."""
    names = {f"layers.{index}": kind for index, kind in enumerate(kinds)}
    calls = [(path, index, index + 1) for index, path in enumerate(names)]
    total = len(names)
    parameters = tuple(
        ParameterSpec(f"{path}.weight", path, size, 4 * size, True)
        for path, size in zip(names, sizes or (), strict=False)
        if size
    )
    base = example_profile()
    return example_profile(
        kinds={"": "Sequential", **names},
        runs=(layer_calls([*calls, ("", 0, total)]),) * 4,
        watched=dataclasses.replace(base.watched, values=(total * MS,) * 4),
        recording=dataclasses.replace(base.recording, operations=()),
        parameters=parameters,
    )


def test_repeated_blocks_are_one_row_with_rows_for_what_is_inside():
    assert shown(layer_rows(example_profile())) == [
        (0, "Net"),
        (1, "blocks.0 ... 1 (2x)"),
        (2, "fc"),
        (2, "(blocks.0 ... 1, self)"),
        (1, "head"),
        (1, "(Net, self)"),
        (0, "(unattributed)"),
    ]


def test_expanded_blocks_stand_one_by_one():
    labels = [label for _, label in shown(layer_rows(example_profile(), expand=True))]
    assert labels[1:7] == [
        "blocks.0",
        "fc",
        "(blocks.0, self)",
        "blocks.1",
        "fc",
        "(blocks.1, self)",
    ]


def test_a_folded_row_has_the_sums_of_its_layers():
    rows = {row.label: row for row in layer_rows(example_profile())}
    both = rows["fc"]
    assert both.paths == ("blocks.0.fc", "blocks.1.fc")
    assert both.layer.time_s == pytest.approx(4 * MS)
    assert both.layer.macs == 2000
    assert both.layer.parameters == 200
    assert both.layer.calls == 2


@pytest.mark.parametrize("depth", [None, 0, 1, 2])
@pytest.mark.parametrize("expand", [True, False])
@pytest.mark.parametrize("make", [example_profile, training_profile])
def test_the_own_times_add_up_to_the_call(make, depth, expand):
    profile = make()
    rows = layer_rows(profile, depth=depth, expand=expand)
    assert sum(row.own_s for row in rows) == pytest.approx(profile.total_s, rel=1e-12)


def test_what_a_container_does_itself_is_a_row():
    rows = {row.label: row for row in layer_rows(example_profile())}
    own = rows["(blocks.0 ... 1, self)"]
    assert own.role == "itself"
    assert own.own_s == pytest.approx(2 * MS)
    assert own.layer.macs == 0
    assert own.layer.other_flops == 80
    assert own.layer.parameters == 0


def test_what_no_layer_did_is_a_row():
    last = layer_rows(example_profile())[-1]
    assert (last.role, last.paths) == ("unattributed", ())
    assert last.own_s == pytest.approx(1 * MS)


def test_depth_hides_what_is_below_and_says_how_much():
    rows = layer_rows(example_profile(), depth=1)
    assert [(row.label, row.hidden) for row in rows[:3]] == [
        ("Net", 0),
        ("blocks.0 ... 1 (2x)", 2),
        ("head", 0),
    ]
    assert rows[1].own_s == pytest.approx(6 * MS)


def test_depth_zero_is_the_model_alone():
    (model, rest) = layer_rows(example_profile(), depth=0)
    assert (model.label, model.hidden, rest.role) == ("Net", 5, "unattributed")


def test_a_negative_depth_is_refused():
    with pytest.raises(SettingError, match="depth=-1"):
        layer_rows(example_profile(), depth=-1)


def test_a_pattern_of_several_layers_folds_too():
    rows = layer_rows(stack(["Linear", "ReLU"] * 3, sizes=[8, 0] * 3))
    assert [row.label for row in rows[1:3]] == ["layers.0 ... 4 (3x)", "layers.1 ... 5 (3x)"]
    assert [row.layer.time_s for row in rows[1:3]] == pytest.approx([3 * MS, 3 * MS])


def test_layers_of_other_sizes_are_not_folded():
    rows = layer_rows(stack(["Linear", "Linear", "Linear"], sizes=[8, 8, 9]))
    assert [row.label for row in rows[1:3]] == ["layers.0 ... 1 (2x)", "layers.2"]


def test_a_pattern_that_stands_twice_is_no_repetition():
    rows = layer_rows(stack(["Linear", "ReLU"] * 2, sizes=[8, 0] * 2))
    assert [row.label for row in rows[1:5]] == [f"layers.{index}" for index in range(4)]


def test_the_phases_of_training_have_the_costs_of_their_operations():
    profile = training_profile()
    rows = {row.label: row for row in layer_rows(profile)}
    assert rows["<backward>"].layer.macs == 2500
    assert rows["<backward>"].layer.bytes_moved == 1200
    assert rows["<update>"].layer.other_flops == 40
    assert rows["<update>"].level == 0


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["head"], "head"),
        (["h.0.mlp.0", "h.1.mlp.0"], "h.*.mlp.0"),
        (["layers.1", "layers.3"], "layers.*"),
        ([""], ""),
        (["a", "b.c"], "a, b.c"),
    ],
)
def test_layers_are_named_by_what_they_share(paths, name):
    assert shared_name(paths) == name

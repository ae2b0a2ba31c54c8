from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import Cost, LayerCall, OpRecord, TensorSpec
from tinytorch.profiling.layers import (
    BACKWARD,
    UPDATE,
    LayerTimes,
    build_layers,
    group_name,
    layer_times,
)

# ---------------------------------------------------------------- times


@dataclass
class Call:
    """A call as a tree: own time before, between and after the calls inside."""

    path: str
    gaps: list[int]
    inside: list["Call"] = field(default_factory=list)

    @property
    def own(self):
        return sum(self.gaps)

    @property
    def duration(self):
        return self.own + sum(call.duration for call in self.inside)

    def listed(self, start=0):
        """Give the call and all inside in the order in which they end."""
        calls, now = [], start + self.gaps[0]
        for call, gap in zip(self.inside, self.gaps[1:], strict=True):
            calls += call.listed(now)
            now += call.duration + gap
        return [*calls, LayerCall(self.path, float(start), float(now))]

    def walk(self, outer=()):
        yield self, outer
        for call in self.inside:
            yield from call.walk((*outer, self.path))


@st.composite
def trees(draw, depth=3, least=1):
    path = draw(st.sampled_from(["", "a", "a.b", "c", "c.0", "c.1"]))
    count = draw(st.integers(0, 3)) if depth else 0
    # whole numbers, so that sums of floats are exact; zero is what a coarse clock gives
    gaps = draw(st.lists(st.integers(least, 9), min_size=count + 1, max_size=count + 1))
    return Call(path, gaps, [draw(trees(depth - 1, least)) for _ in range(count)])


@given(trees())
def test_times_are_those_of_the_tree_of_calls(tree):
    own, inside, calls = defaultdict(int), defaultdict(int), Counter()
    for call, outer in tree.walk():
        own[call.path] += call.own
        inside[call.path] += 0 if call.path in outer else call.duration  # once, if it calls itself
        calls[call.path] += 1
    found = layer_times([tree.listed()])
    assert {path: row for path, row in found.items() if row.calls} == {
        path: LayerTimes(inside[path], own[path], calls[path]) for path in calls
    }


@given(trees())
def test_what_is_never_called_has_the_time_in_which_something_in_it_ran(tree):
    found = layer_times([tree.listed()])
    for container in {"", "a", "c"} - {call.path for call, _ in tree.walk()}:
        ran = set()  # the clock has whole numbers: which of them were spent in there?
        for call in tree.listed():
            if call.path.startswith(f"{container}." if container else ""):
                ran |= set(range(int(call.start), int(call.end)))
        row = found.get(container, LayerTimes(0.0, 0.0, 0.0))
        assert row == LayerTimes(float(len(ran)), 0.0, 0.0)


def test_a_member_of_a_list_that_calls_another_counts_once():
    # parts = ModuleList([linear, Sequential(linear, ReLU())]), of which the model calls the second
    run = [
        LayerCall("parts.0", 1.0, 8.0),
        LayerCall("parts.1.1", 8.0, 9.0),
        LayerCall("parts.1", 0.0, 10.0),
        LayerCall("", 0.0, 10.0),
    ]
    assert layer_times([run])["parts"] == LayerTimes(10.0, 0.0, 0.0)


@given(st.lists(trees(least=0), min_size=1, max_size=4))
def test_own_times_add_up_to_the_outermost_calls_also_on_a_coarse_clock(forest):
    start, run = 0, []
    for tree in forest:
        run += tree.listed(start)
        start += tree.duration
    assert sum(row.self_s for row in layer_times([run]).values()) == start


def test_where_the_clock_sees_no_difference_the_inner_call_gets_the_time():
    run = [LayerCall("a.b", 1.0, 4.0), LayerCall("a", 1.0, 4.0), LayerCall("", 1.0, 4.0)]
    times = layer_times([run])
    assert [times[path].self_s for path in ("a.b", "a", "")] == [3.0, 0.0, 0.0]
    assert {row.total_s for row in times.values()} == {3.0}


def test_several_runs_are_averaged():
    runs = [[LayerCall("", 0.0, end)] * calls for end, calls in ((4.0, 1), (2.0, 1))]
    assert layer_times(runs) == {"": LayerTimes(3.0, 3.0, 1.0)}
    half = [[LayerCall("a", 0.0, 2.0)], []]  # a layer that runs every other time
    assert layer_times(half) == {"a": LayerTimes(1.0, 1.0, 0.5), "": LayerTimes(1.0)}


def test_no_runs_have_no_times():
    assert layer_times([]) == layer_times([[]]) == {}


# ---------------------------------------------------------------- the table

SPEC = TensorSpec((2, 3), "float32", 24)


def operation(path, *, macs=0, other=0, moved=10, phase="forward", seconds=1.0, counted=True):
    cost = Cost("kind", macs, macs // 2, 0, other, moved, 0) if counted else None
    return OpRecord("kind", path, phase, (SPEC,), (SPEC,), cost, 0.0, seconds)


def times(**seconds):
    named = {path.replace("__", ".").strip("_"): value for path, value in seconds.items()}
    return {path: LayerTimes(total, own, 1.0) for path, (total, own) in named.items()}


def timed(*calls):
    """Give the times of calls: path, start and end."""
    return layer_times([[LayerCall(*call) for call in calls]])


def table(kinds, found=None, operations=(), parameters=(), made=None, peak=None):
    rows = build_layers(kinds, found or {}, operations, parameters, made or {}, peak or {})
    return {row.path: row for row in rows}


NET = {"": "Net", "blocks": "ModuleList", "blocks.0": "Block", "blocks.0.fc": "Linear", "x": "Idle"}


def test_rows_stand_in_the_order_of_the_model_and_know_their_depth():
    rows = table(NET, timed(("blocks.0.fc", 1.0, 2.0), ("blocks.0", 1.0, 3.0), ("", 0.0, 5.0)))
    assert [(row.path, row.kind, row.depth, row.is_leaf) for row in rows.values()] == [
        ("", "Net", 0, False),
        ("blocks", "ModuleList", 1, False),
        ("blocks.0", "Block", 2, False),
        ("blocks.0.fc", "Linear", 3, True),
    ]


def test_a_layer_that_did_not_run_is_left_out():
    assert "x" not in table(NET, times(_=(5.0, 5.0)), parameters=[parameter("x.weight", "x")])


def test_a_list_of_layers_has_the_time_of_what_is_in_it():
    kinds = {"": "Net", "h": "ModuleList", "h.0": "Linear", "h.1": "Linear", "h.1.x": "Inner"}
    found = timed(("h.0", 1.0, 3.0), ("h.1.x", 4.0, 6.0), ("h.1", 3.0, 6.0), ("", 0.0, 9.0))
    row = table(kinds, found)["h"]
    assert (row.time_s, row.self_s, row.calls) == (5.0, 0.0, 0.0)


def test_lists_in_lists_have_it_too():
    kinds = {"": "Net", "h": "ModuleList", "h.0": "ModuleList", "h.0.0": "Linear"}
    rows = table(kinds, timed(("h.0.0", 1.0, 3.0), ("", 0.0, 3.0)))
    assert [row.time_s for row in rows.values()] == [3.0, 2.0, 2.0, 2.0]


def test_a_model_that_could_not_be_watched_has_the_time_of_its_layers():
    # "blocks" is a plain list, of which nobody has a row
    kinds = {"": "function", "net.blocks.0": "Linear", "net.blocks.1": "Linear"}
    found = timed(("net.blocks.0", 0.0, 2.0), ("net.blocks.1", 2.0, 5.0))
    assert table(kinds, found)[""].time_s == 5.0


STEP = {"": "Linear", BACKWARD: "backward", UPDATE: "update"}


def test_the_backward_pass_and_the_update_are_in_no_layer():
    rows = table(STEP, timed(("", 0.0, 1.0), (BACKWARD, 1.0, 3.0), (UPDATE, 3.0, 5.0)))
    assert (rows[""].time_s, rows[""].is_leaf) == (1.0, True)
    phases = [rows[path] for path in (BACKWARD, UPDATE)]
    assert [(row.depth, row.time_s, row.is_leaf) for row in phases] == [(0, 2.0, True)] * 2


def test_the_backward_pass_and_the_update_have_the_costs_of_all_their_operations():
    operations = [
        operation("", macs=1, phase="forward"),
        operation("", macs=100, other=7, moved=50, phase="backward"),
        operation(None, other=3, moved=20, phase="backward"),
        operation(None, other=5, moved=30, phase="update"),
    ]
    rows = table(STEP, timed(("", 0, 1), (BACKWARD, 1, 3), (UPDATE, 3, 4)), operations)
    row = rows[BACKWARD]
    assert (row.macs, row.other_flops, row.bytes_moved, row.causal_macs) == (100, 10, 70, 50)
    assert (row.self_macs, row.self_flops, row.self_bytes) == (100, 210, 70)
    assert row.self_largest_bytes == 50
    row = rows[UPDATE]
    assert (row.macs, row.self_flops, row.self_bytes) == (0, 5, 30)
    assert (rows[""].macs, rows[""].backward_macs) == (1, 100)


WHOLE = timed(("blocks.0.fc", 1.0, 2.0), ("blocks.0", 1.0, 3.0), ("", 0.0, 5.0))


def test_costs_go_to_a_layer_and_to_all_around_it():
    operations = [
        operation("blocks.0.fc", macs=100, other=7, moved=50),
        operation("blocks.0", macs=10, other=1, moved=5),
        operation("", other=2, moved=1),
    ]
    rows = table(NET, WHOLE, operations)
    assert {path: row.macs for path, row in rows.items()} == {
        "": 110,
        "blocks": 110,
        "blocks.0": 110,
        "blocks.0.fc": 100,
    }
    block = rows["blocks.0"]
    assert (block.self_macs, block.self_flops, block.self_bytes) == (10, 21, 5)
    assert (block.other_flops, block.bytes_moved, block.causal_macs) == (8, 55, 55)
    assert (block.flops, block.all_flops, block.self_largest_bytes) == (220, 228, 5)
    assert rows[""].self_macs == 0


def test_own_costs_of_all_layers_add_up_to_the_model():
    operations = [operation(path, macs=2**i) for i, path in enumerate(["", *NET, "blocks.7"])]
    rows = table(NET, WHOLE, operations)
    assert sum(row.self_macs for row in rows.values()) == rows[""].macs == 2**7 - 1
    assert sum(row.self_bytes for row in rows.values()) == rows[""].bytes_moved


def test_losses_and_updates_are_of_no_layer():
    operations = [operation(None, macs=5), operation("", macs=7, phase="update")]
    assert table(NET, times(_=(1.0, 1.0)), operations)[""].macs == 0


def test_backward_operations_have_columns_of_their_own():
    operations = [operation("blocks.0.fc", macs=100, phase="backward", seconds=3.0)] * 2
    rows = table(NET, times(_=(1.0, 1.0), blocks__0__fc=(1.0, 1.0)), operations)
    for path in ("", "blocks.0.fc"):
        assert (rows[path].backward_macs, rows[path].backward_s, rows[path].macs) == (200, 6.0, 0)


def test_operations_that_are_not_counted_cost_nothing():
    assert table(NET, times(_=(1.0, 1.0)), [operation("", counted=False)])[""].bytes_moved == 0


@pytest.mark.parametrize("path", ["blocks.0.fc", "blocks.7.inner", "x"])
def test_what_runs_in_a_layer_that_was_not_timed_belongs_to_the_one_around_it(path):
    # Such are the layers inside of a compiled module: their time is in it, and so is their work.
    rows = table(NET, timed(("", 0.0, 1.0)), [operation(path, macs=9)])
    assert list(rows) == [""]
    assert (rows[""].macs, rows[""].self_macs, rows[""].self_flops) == (9, 9, 18)
    assert (rows[""].self_bytes, rows[""].is_leaf) == (10, True)


def test_work_in_a_list_of_layers_belongs_to_what_was_called():
    rows = table(NET, WHOLE, [operation("blocks.7.inner", macs=9)])
    assert (rows["blocks"].macs, rows["blocks"].self_macs, rows[""].self_macs) == (9, 0, 9)


def test_work_of_a_function_around_layers_is_its_own():
    kinds = {"": "function", "net": "Linear"}
    operations = [operation("net", macs=9), operation("", macs=4)]
    rows = table(kinds, timed(("net", 0.0, 1.0)), operations)
    assert (rows[""].macs, rows[""].self_macs, rows["net"].self_macs) == (13, 4, 9)


def test_a_function_in_which_nothing_could_be_timed_has_no_row():
    assert table({"": "function"}, {}, [operation("", macs=9)]) == {}


def parameter(name, path, size=10, *, is_buffer=False):
    return ParameterSpec(name, path, size, 4 * size, True, is_buffer)


def test_parameters_go_to_a_layer_and_to_all_around_it_and_buffers_do_not():
    specs = [
        parameter("blocks.0.fc.weight", "blocks.0.fc", 100),
        parameter("scale", "", 1),
        parameter("mean", "", 50, is_buffer=True),
    ]
    rows = table(NET, timed(("blocks.0.fc", 0.0, 1.0), ("", 0.0, 1.0)), (), specs)
    assert {path: row.parameters for path, row in rows.items()} == {
        "": 101,
        "blocks": 100,
        "blocks.0": 100,
        "blocks.0.fc": 100,
    }
    assert rows[""].parameter_bytes == 404


def test_bytes_go_to_a_layer_and_to_all_around_it():
    made = {"blocks.0.fc": 100, "": 5, None: 77}
    rows = table(NET, times(_=(1.0, 1.0), blocks__0__fc=(1.0, 1.0)), made=made, peak={"blocks": 3})
    assert (rows[""].activation_bytes, rows["blocks.0.fc"].activation_bytes) == (105, 100)
    assert (rows[""].peak_bytes, rows["blocks.0.fc"].peak_bytes) == (3, 0)


def test_ratios_of_nothing_are_none():
    row = table({"": "Net"}, {"": LayerTimes(0.0, 0.0, 1.0)})[""]
    assert (row.intensity, row.flops_per_s) == (None, None)
    row = table({"": "Net"}, times(_=(2.0, 2.0)), [operation("", macs=50, moved=10)])[""]
    assert (row.intensity, row.flops_per_s) == (10.0, 50.0)


# ---------------------------------------------------------------- repeated layers


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("h.0.mlp", "h.*.mlp"),
        ("h.12.mlp.3", "h.*.mlp.*"),
        ("0", "*"),
        ("conv1", "conv1"),
        ("layer4.0.bn2", "layer4.*.bn2"),
        ("", ""),
    ],
)
def test_repeated_layers_share_a_name(path, name):
    assert group_name(path) == name


def groups(kinds, operations=(), parameters=()):
    found = {path: LayerTimes(1.0, 1.0, 1.0) for path in kinds}
    return [row.group for row in table(kinds, found, operations, parameters).values()]


def test_layers_of_one_name_kind_and_size_are_a_group():
    kinds = {"h.0.mlp": "Linear", "h.1.mlp": "Linear"}
    same = [parameter(f"{path}.weight", path) for path in kinds]
    first, second = groups(kinds, parameters=same)
    assert first == second
    first, second = groups(kinds, parameters=[same[0], parameter("h.1.mlp.weight", "h.1.mlp", 11)])
    assert first != second
    first, second = groups(kinds, [operation("h.0.mlp", macs=1)], same)
    assert first != second
    first, second = groups({"h.0.mlp": "Linear", "h.1.mlp": "Other"}, parameters=same)
    assert first != second


def test_activations_next_to_each_other_are_no_group_but_those_of_equal_blocks_are():
    assert len(set(groups({"1": "ReLU", "3": "ReLU"}))) == 2
    assert len(set(groups({"h.0.1": "ReLU", "h.1.1": "ReLU"}))) == 1
    assert len(set(groups({"h.0.act": "ReLU", "h.1.act": "ReLU"}))) == 1

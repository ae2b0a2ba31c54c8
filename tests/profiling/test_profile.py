import dataclasses
import math

import pytest
from example_profiles import (
    MS,
    empty_profile,
    example_ceilings,
    example_profile,
    layer_calls,
    operation,
    training_profile,
)

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import Allocation, Recording, TensorSpec
from tinytorch.profiling.layers import BACKWARD, UPDATE


def profile_of(calls, *, total=10.0, kinds=None, **changes):
    """Give a profile whose every watched call is `total` ms and has these layer calls, in ms."""
    kinds = kinds or {path: "Layer" for path, _, _ in calls}
    watched = Samples("watched", (total * MS,) * 4)
    return example_profile(
        kinds=kinds,
        watched=watched,
        runs=(layer_calls(calls),) * 4,
        **({"parameters": ()} | changes),
    )


def recorded(*operations, allocations=()):
    return Recording(tuple(operations), tuple(allocations), 1.0)


# ---------------------------------------------------------------- time


@pytest.mark.parametrize("profile", [example_profile(), training_profile()])
def test_own_times_and_what_is_unattributed_add_up_to_the_call(profile):
    own = sum(layer.self_s for layer in profile.layers)
    assert own + profile.unattributed_s == pytest.approx(profile.total_s)
    assert profile.unattributed_s >= 0
    shares = sum(hotspot.share for hotspot in profile.hotspots)
    assert shares + profile.unattributed_s / profile.total_s == pytest.approx(1)


def test_what_lies_around_the_model_is_unattributed():
    profile = profile_of([("", 1.0, 7.0)])
    assert profile.unattributed_s == pytest.approx(4 * MS)
    assert profile.share(profile.layer("")) == pytest.approx(0.6)


def test_a_part_of_a_call_is_counted_with_all_below_it():
    profile = example_profile()
    assert profile.share(profile.layer("")) == pytest.approx(0.9)
    assert profile.share(profile.layer("blocks.0")) == pytest.approx(0.3)
    assert profile.layer("blocks.0").self_s == pytest.approx(1 * MS)


def test_outliers_say_nothing_about_layers():
    slow = layer_calls([("", 0.0, 500.0)])
    usual = layer_calls([("", 0.0, 10.0)])
    values = (0.010, 0.5, 0.010, 0.010, 0.010, 0.5, 0.010)
    profile = profile_of(
        [("", 0, 1)],
        latency=Samples("latency", values),
        turns=(7,),
    )
    profile = dataclasses.replace(
        profile,
        watched=Samples("watched", values),
        runs=tuple(slow if value > 0.1 else usual for value in values),
    )
    assert profile.total_s == pytest.approx(0.010)
    assert profile.layer("").time_s == pytest.approx(0.010)


def test_the_overhead_is_that_of_neighbouring_turns():
    # The machine becomes three times slower on the way; watching costs 10% all the time.
    profile = example_profile(
        latency=Samples("latency", (1.0, 1.0, 9.0, 2.0, 3.0, 3.0)),
        watched=Samples("watched", (1.1, 1.1, 1.1, 2.2, 3.3, 3.3)),
        turns=(3, 1, 2),
        runs=(layer_calls([("", 0, 1)]),) * 6,
    )
    assert profile.overhead == pytest.approx(0.1)


def test_on_a_gpu_the_overhead_is_over_calls_without_gaps_and_the_rest_is_waiting():
    profile = example_profile(
        latency=Samples("latency", (0.020,) * 4), busy=Samples("busy", (0.008,) * 4)
    )
    assert profile.overhead == pytest.approx(0.25)
    assert profile.idle_share == pytest.approx(0.6)
    assert example_profile().idle_share is None


def test_a_trace_does_not_tell_what_watching_cost():
    profile = example_profile(busy=example_profile().watched, is_traced=True)
    assert profile.overhead is None
    assert profile.idle_share is not None


def test_throughput_needs_a_batch():
    assert example_profile().throughput == pytest.approx(4 / 0.010)
    assert example_profile(examples=None).throughput is None


def test_a_layer_that_did_not_run_is_an_error_that_names_some_that_did():
    with pytest.raises(
        SettingError, match=r"no layer 'tail' ran in example; there are '', 'blocks"
    ):
        example_profile().layer("tail")


def test_the_backward_pass_and_the_update_are_rows():
    profile = training_profile()
    assert profile.layer(BACKWARD).time_s == pytest.approx(6 * MS)
    assert profile.layer(UPDATE).time_s == pytest.approx(2 * MS)
    assert profile.layer("").time_s == pytest.approx(9 * MS)
    assert profile.unattributed_s == pytest.approx(3 * MS)
    assert BACKWARD not in {layer.path for layer in example_profile().layers}


# ---------------------------------------------------------------- hotspots


def weights(**sizes):
    paths = {path.replace("__", "."): size for path, size in sizes.items()}
    return tuple(ParameterSpec(f"{p}.weight", p, n, 4 * n, True) for p, n in paths.items())


PAIR = [("h.0.mlp", 0.0, 3.0), ("h.1.mlp", 3.0, 6.0), ("head", 6.0, 10.0)]
SAME = weights(h__0__mlp=10, h__1__mlp=10)


def hotspots(calls=PAIR, **changes):
    changes = {"recording": recorded(), "parameters": SAME} | changes
    return {each.name: each.layers for each in profile_of(calls, **changes).hotspots}


def test_equal_layers_are_one_hotspot_and_can_be_the_slowest_together():
    assert hotspots() == {"h.*.mlp": ("h.0.mlp", "h.1.mlp"), "head": ("head",)}
    profile = profile_of(PAIR, parameters=SAME, recording=recorded())
    assert profile.bottleneck.name == "h.*.mlp"
    assert profile.bottleneck.self_s == pytest.approx(6 * MS)
    assert profile.bottleneck.share == pytest.approx(0.6)


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": weights(h__0__mlp=10, h__1__mlp=11)},
        {"kinds": {"h.0.mlp": "Linear", "h.1.mlp": "Other", "head": "Linear"}},
        {"recording": recorded(operation("linear", "h.0.mlp", 0.0, 0.0))},
    ],
    ids=["size", "kind", "work"],
)
def test_layers_of_another_kind_or_size_are_hotspots_of_their_own(change):
    assert hotspots(**change) == {
        "h.0.mlp": ("h.0.mlp",),
        "h.1.mlp": ("h.1.mlp",),
        "head": ("head",),
    }


def test_hotspots_come_slowest_first_by_what_they_do_themselves():
    seconds = [hotspot.self_s for hotspot in example_profile().hotspots]
    assert seconds == sorted(seconds, reverse=True)
    names = [hotspot.name for hotspot in example_profile().hotspots]
    assert names[0] == "blocks.*.fc"
    assert "" in names  # what the model does itself


def test_without_layers_there_is_no_bottleneck():
    assert (empty_profile().hotspots, empty_profile().bottleneck) == ((), None)
    # Here the model did something while it was recorded, and could not be watched.
    unwatched = example_profile(kinds={"": "function"}, runs=((),) * 4)
    assert unwatched.bottleneck is None


def test_the_phases_of_training_are_judged_by_all_that_they_do():
    found = {hotspot.name: hotspot.bound for hotspot in training_profile().hotspots}
    assert found[BACKWARD].achieved == pytest.approx(2 * 2500 / (6 * MS))
    assert found[BACKWARD].intensity == pytest.approx(2 * 2500 / 1200)
    assert found[UPDATE].achieved == pytest.approx(40 / (2 * MS))


def test_own_costs_add_up_to_those_of_the_call():
    profile = training_profile()
    assert sum(layer.self_macs for layer in profile.layers) == profile.macs
    assert sum(layer.self_bytes for layer in profile.layers) == profile.bytes_moved


@pytest.mark.parametrize("factor", [0.5, 2, 10])
def test_a_prediction_is_the_call_with_these_layers_faster(factor):
    profile = example_profile()
    hotspot = profile.bottleneck
    faster = profile.total_s - hotspot.self_s + hotspot.self_s / factor
    assert hotspot.speedup_if(factor) == pytest.approx(profile.total_s / faster)


def test_a_layer_that_is_the_whole_call_has_no_limit():
    # the average of these is not exact
    runs = [layer_calls([("", 0.0, end)]) for end in (100.0, 200.0, 300.0)] * 5
    profile = dataclasses.replace(
        profile_of([("", 0.0, 1.0)]),
        watched=Samples("watched", tuple(run[0].end for run in runs)),
        runs=tuple(runs),
    )
    assert profile.bottleneck.speedup_if(math.inf) > 1e6
    assert profile.bottleneck.speedup_if(2) == pytest.approx(2)


def test_layers_that_fill_a_call_are_all_of_it_whatever_rounding_does():
    calls = [(f"h.{i}.mlp", i * 0.1, (i + 1) * 0.1) for i in range(3)]
    same = weights(h__0__mlp=10, h__1__mlp=10, h__2__mlp=10)
    profile = profile_of(calls, total=0.3, parameters=same, recording=recorded())
    assert profile.bottleneck.share == pytest.approx(1)
    assert profile.bottleneck.speedup_if(2) == pytest.approx(2)


# ---------------------------------------------------------------- the roofline


def test_without_ceilings_nothing_is_known_about_bounds():
    profile = example_profile(ceilings=None)
    assert profile.model_bound is None
    assert profile.bound(profile.layer("head")) is None
    assert {hotspot.bound for hotspot in profile.hotspots} == {None}


def test_a_bound_compares_what_a_layer_did_with_what_the_machine_can():
    profile = example_profile()
    layer = profile.layer("blocks.0.fc")
    bound = profile.bound(layer)
    assert bound.achieved == pytest.approx(2 * 1000 / (2 * MS))
    assert bound.intensity == pytest.approx(2 * 1000 / 400)
    assert bound.peak == 1e6
    assert bound.bandwidth == 1e5  # 1,680 bytes do not fit into the cache of 1,500
    assert bound.is_memory_bound


def test_what_fits_into_a_cache_is_read_from_there():
    small = (Allocation(1000, "inputs", None, "resident", 0.0, None),)
    base = example_profile()
    profile = example_profile(recording=Recording(base.operations, small, 1.0))
    assert profile.working_set_bytes == 1000
    assert profile.bound(profile.layer("blocks.0.fc")).bandwidth == 1e6


def test_a_hotspot_is_judged_by_its_own_work():
    profile = example_profile()
    (pair,) = [each for each in profile.hotspots if each.name == "blocks.*.fc"]
    assert pair.bound.achieved == pytest.approx(2 * 2000 / (4 * MS))
    assert pair.bound.intensity == pytest.approx(2 * 2000 / 800)


def test_the_model_is_judged_by_the_call_as_it_is():
    profile = example_profile()
    flops = profile.flops + profile.other_flops
    assert profile.model_bound.achieved == pytest.approx(flops / profile.latency.median)


def test_without_work_or_a_rate_for_its_dtype_there_is_no_bound():
    idle = example_profile(recording=recorded(operation("odd", "head", 0.0, 1.0, family=None)))
    assert idle.bound(idle.layer("head")) is None
    half = TensorSpec((4, 10), "float16", 80)
    work = dataclasses.replace(
        operation("linear", "head", 0.0, 1.0), inputs=(half,), outputs=(half,)
    )
    profile = example_profile(recording=recorded(work))
    assert example_ceilings().peak_flops("float16") is None
    assert profile.dtype == "float16"
    assert profile.bound(profile.layer("head")) is None


def test_the_dtype_is_that_of_most_products():
    def work(dtype, macs):
        spec = TensorSpec((4, 10), dtype, 160)
        made = operation("linear", "head", 0.0, 1.0, macs=macs)
        return dataclasses.replace(made, inputs=(spec,), outputs=(spec,))

    mixed = recorded(work("float64", 10), work("bfloat16", 30), work("float64", 10))
    assert example_profile(recording=mixed).dtype == "bfloat16"
    assert example_profile(recording=recorded()).dtype == "float32"


# ---------------------------------------------------------------- costs


def test_costs_are_sums_over_all_operations():
    profile = training_profile()
    assert profile.macs == sum(each.macs for each in profile.operations) == 2 * (2 * 1000 + 500)
    assert profile.flops == 2 * profile.macs
    assert profile.macs_in("forward") == profile.macs_in("backward") == 2500
    assert profile.macs_in("update") == 0
    assert profile.other_flops == 40 * 3
    assert profile.bytes_moved == sum(each.bytes_moved for each in profile.operations)
    assert profile.causal_macs == profile.macs
    assert profile.recomputed_macs == 0


def test_what_is_not_counted_is_named_with_its_time_and_place():
    places = [("odd", "head", 2.0), ("odd", "", 1.0), ("odder", None, 9.0), ("odd", "head", 1.0)]
    unknown = [operation(kind, path, 0.0, s, family=None) for kind, path, s in places]
    counted = operation("linear", "head", 0.0, 5.0)
    odder, odd = example_profile(recording=recorded(*unknown, counted)).not_counted
    assert (odder.kind, odder.calls, odder.seconds, odder.paths) == (
        "odder",
        1,
        9.0,
        ("(outside)",),
    )
    assert (odd.kind, odd.calls, odd.seconds, odd.paths) == ("odd", 3, 4.0, ("", "head"))


def test_when_everything_is_counted_nothing_is_not():
    work = recorded(operation("linear", "head", 0.0, 1.0))
    assert example_profile(recording=work).not_counted == ()


def test_top_operations_are_kinds_in_phases_slowest_first():
    profile = training_profile()
    top = profile.top_operations
    assert [(each.kind, each.phase, each.calls) for each in top[:2]] == [
        ("linear", "forward", 3),
        ("linear", "backward", 3),
    ]
    assert sum(each.share for each in top) == pytest.approx(1)
    assert sum(each.seconds for each in top) == pytest.approx(
        sum(each.duration for each in profile.operations)
    )
    assert sum(each.macs for each in top) == profile.macs
    assert sum(each.bytes_moved for each in top) == profile.bytes_moved
    families = {each.kind: each.family for each in top}
    assert families["odd"] == "not counted"
    assert families["relu"] == "elementwise"


def test_operations_that_take_no_time_have_no_share():
    (only,) = example_profile(recording=recorded(operation("linear", "", 0.0, 0.0))).top_operations
    assert only.share == 0


# ---------------------------------------------------------------- memory


def test_memory_is_that_of_the_recording():
    profile = example_profile()
    assert profile.memory.allocations == profile.recording.allocations
    assert profile.working_set_bytes == profile.memory.peak_bytes == 1040 + 160 + 480
    assert profile.layer("blocks.0").activation_bytes == 160
    assert profile.layer("").activation_bytes == 160 + 320 + 160


def test_buffers_are_no_parameters_but_take_memory():
    profile = example_profile()
    assert profile.parameter_count == profile.layer("").parameters == 250
    assert profile.parameter_bytes == profile.layer("").parameter_bytes == 1000
    assert profile.buffer_bytes == 40

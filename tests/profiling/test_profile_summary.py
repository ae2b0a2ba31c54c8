import dataclasses
import json

import pytest
from example_profiles import empty_profile, example_profile, moving_profile, training_profile

from tinytorch.measure.ceilings import Ceilings
from tinytorch.measure.counters import Counters
from tinytorch.measure.samples import Samples
from tinytorch.profiling.summary import SCHEMA_VERSION, summarise_profile

PLAIN = (dict, list, str, bool, int, float, type(None))


@pytest.fixture(scope="module")
def summary():
    return summarise_profile(example_profile())


def every_value(value):
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from every_value(item)


@pytest.mark.parametrize(
    "profile",
    [
        example_profile(),
        example_profile(ceilings=None, examples=None),
        training_profile(),
        moving_profile(),
        empty_profile(),
    ],
    ids=["inference", "without ceilings", "training", "without FLOPs", "without anything"],
)
def test_it_is_plain_json(profile):
    summary = summarise_profile(profile)
    assert all(type(value) in PLAIN for value in every_value(summary))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_the_schema_has_a_version(summary):
    assert (summary["schema"], summary["schema_version"]) == ("tinytorch.profile", SCHEMA_VERSION)


def test_raw_values_stand_beside_their_statistics(summary):
    latency = summary["latency"]
    assert latency["values"] == [0.0098, 0.0100, 0.0100, 0.0102]
    assert latency["median"] == pytest.approx(0.0100)
    assert latency["median_interval"]["low"] == 0.0098
    assert latency["median_interval"]["confidence"] == pytest.approx(0.875)
    fields = {name: latency[name] for name in ("name", "values", "unit", "loops", "notes")}
    assert Samples.from_dict(fields) == example_profile().latency


def test_flops_say_how_they_are_counted(summary):
    costs = summary["costs"]
    assert "two FLOPs per multiply-accumulate" in costs["convention"]
    assert (costs["macs"], costs["flops"], costs["other_flops"]) == (2500, 5000, 80)
    assert costs["macs_by_phase"] == {"forward": 2500}
    assert costs["contraction_flops_per_s"] == pytest.approx(5000 / 0.010)


def test_layers_add_up_to_the_watched_call(summary):
    own = sum(layer["self_s"] for layer in summary["layers"])
    assert own + summary["unattributed_s"] == pytest.approx(summary["total_s"])
    assert [layer["path"] for layer in summary["layers"]][:2] == ["", "blocks.0"]
    head = summary["layers"][-1]
    assert (head["macs"], head["share"]) == (500, pytest.approx(0.2))
    assert head["bound"]["bound"] == "memory"


def test_hotspots_carry_amdahls_table(summary):
    first = summary["hotspots"][0]
    assert first["name"] == "blocks.*.fc"
    assert list(first["speedups"]) == ["2", "4", "10", "inf"]
    assert first["speedups"]["2"] == pytest.approx(1.25)


def test_an_infinite_speedup_is_null():
    only = example_profile(
        kinds={"": "Net"}, runs=(example_profile().runs[0][-1:],) * 4, parameters=()
    )
    whole = dataclasses.replace(only.runs[0][0], start=0.0, end=0.010)
    everything = dataclasses.replace(only, runs=((whole,),) * 4)
    assert summarise_profile(everything)["hotspots"][0]["speedups"]["inf"] is None


def test_what_was_not_counted_is_named(summary):
    (missing,) = summary["not_counted"]
    assert (missing["kind"], missing["calls"], missing["paths"]) == ("odd", 1, ["head"])


def test_the_roofline_has_the_roof_and_what_is_under_it(summary):
    roofline = summary["roofline"]
    assert (roofline["level"], roofline["peak_flops"], roofline["bandwidth"]) == ("DRAM", 1e6, 1e5)
    assert roofline["ridge"] == pytest.approx(10.0)
    assert [point["name"] for point in roofline["points"][:2]] == ["", "blocks.*.fc"]
    assert roofline["points"][1]["achieved"] == pytest.approx(1e6)


def test_without_ceilings_the_roofline_is_empty():
    roofline = summarise_profile(example_profile(ceilings=None))["roofline"]
    assert (roofline["peak_flops"], roofline["points"]) == (None, [])


def test_memory_has_its_peak_and_its_course(summary):
    memory = summary["memory"]
    assert memory["peak_bytes"] == 1680
    assert memory["peak_by_category"] == {"parameters": 1040, "inputs": 160, "activations": 480}
    assert max(memory["timeline"]["total"]) == memory["peak_bytes"]
    assert set(memory["timeline"]["categories"]) == {"parameters", "inputs", "activations"}


def test_parameters_are_counted_without_buffers(summary):
    parameters = summary["parameters"]
    assert (parameters["count"], parameters["trainable_count"]) == (250, 250)
    assert (parameters["bytes"], parameters["buffer_bytes"]) == (1000, 40)
    assert len(parameters["tensors"]) == 4


def test_the_facts_are_there(summary):
    assert summary["facts"]["bottleneck"]["name"] == "blocks.*.fc"
    assert summary["facts"]["bound"] == "memory"
    assert summary["facts"]["device"] is None


def test_a_gpus_waiting_is_among_the_facts():
    on_gpu = example_profile(
        device="cuda:0", device_time=Samples("d", (0.008,) * 4), busy=Samples("b", (0.004,) * 4)
    )
    device = summarise_profile(on_gpu)["facts"]["device"]
    assert device["idle_share"] == pytest.approx(0.6)
    assert device["wall_share_outside"] == pytest.approx(0.2)


def test_ceilings_can_be_read_back(summary):
    assert Ceilings.from_dict(summary["ceilings"]) == example_profile().ceilings


def test_the_backward_pass_has_its_costs():
    layers = {each["path"]: each for each in summarise_profile(training_profile())["layers"]}
    assert layers["<backward>"]["macs"] == 2500


def test_the_backward_pass_and_the_update_are_under_the_roof():
    summary = summarise_profile(training_profile())
    points = {point["name"]: point for point in summary["roofline"]["points"]}
    assert points["<backward>"]["intensity"] == pytest.approx(5000 / 1200)
    assert points["<backward>"]["achieved"] == pytest.approx(5000 / 0.006)
    assert points["<update>"]["bound"] == "memory"
    first = summary["hotspots"][0]
    assert (first["name"], first["roofline"]["bound"]) == ("<backward>", first["bound"])


def test_what_has_no_flops_has_a_share_of_the_bandwidth_and_no_point():
    summary = summarise_profile(moving_profile())
    assert [point["name"] for point in summary["roofline"]["points"]] == []
    first = summary["hotspots"][0]
    assert (first["bound"], first["intensity"]) == ("memory", 0.0)
    # 400 bytes in 4 ms, of the 100 kB/s of the memory
    assert first["of_attainable"] == first["roofline"]["of_attainable"] == pytest.approx(1.0)
    assert summary["layers"][0]["bound"]["of_attainable"] == pytest.approx(1.0)
    assert summary["costs"]["bound"]["of_attainable"] == pytest.approx(0.4)


def test_a_profile_gives_its_summary():
    profile = example_profile()
    assert profile.to_dict() == summarise_profile(profile)


def test_counters_are_given_per_call():
    counters = Counters({"cycles": 100.0}, {"instructions": "no reason"}, calls=4)
    summary = summarise_profile(example_profile(counters=counters))
    assert summary["counters"]["per_call"] == {"cycles": 25.0}
    assert summary["counters"]["unavailable"] == {"instructions": "no reason"}
    assert summarise_profile(example_profile())["counters"] is None

import dataclasses

import numpy as np
import pytest
from classic_models import BATCH, PARAMETERS, make_input, make_model
from measure.imaginary import ceilings, rate

from tinytorch.core.embeddings import Embedding
from tinytorch.core.layers import Linear
from tinytorch.models.records import Allocation
from tinytorch.profiling.flops import SampleFlops
from tinytorch.profiling.layers import BACKWARD
from tinytorch.profiling.model_profile import profile_model
from tinytorch.profiling.profile import MemoryTimeline
from tinytorch.profiling.profiler import (
    backward_facts,
    bound_facts,
    layer_facts,
    memory_facts,
)

MB = 2**20


def buffer(nbytes, category, born, died, phase="forward"):
    return Allocation(nbytes, category, "", phase, born, died)


@pytest.fixture(scope="module")
def profile():
    return profile_model(make_model("core"), make_input("core"), runs=3, ceilings=False)


def test_memory_is_taken_from_the_books():
    model = Linear(2, 1)  # three parameters of four bytes
    books = (
        buffer(12, "parameters", 0.0, None, "resident"),
        buffer(20, "inputs", 0.0, None, "resident"),
        buffer(100, "activations", 1.0, 2.0),
        buffer(60, "activations", 1.5, None),
    )
    facts = memory_facts(model, MemoryTimeline(books))
    assert facts["parameter_memory_mb"] * MB == 12
    assert facts["activation_memory_mb"] * MB == 160
    assert facts["peak_memory_mb"] * MB == 192
    assert facts["memory_efficiency"] == pytest.approx(172 / 192)


def test_no_buffers_at_all_are_no_division_by_zero():
    assert memory_facts(object(), MemoryTimeline(()))["memory_efficiency"] == 0.0


def test_flops_are_per_sample_and_the_rate_of_the_call(profile):
    facts = layer_facts(make_model("core"), profile, SampleFlops(100, 600, BATCH))
    assert (facts["flops"], facts["flops_per_call"], facts["batch_size"]) == (100, 600, BATCH)
    assert facts["parameters"] == PARAMETERS
    assert facts["gflops_per_second"] == pytest.approx(600 / profile.latency.median / 1e9)
    assert facts["latency_ci_low_ms"] <= facts["latency_ms"] <= facts["latency_ci_high_ms"]


def test_without_ceilings_nothing_is_said_about_the_bound(profile):
    facts = bound_facts(profile)
    assert facts["bottleneck"] is None
    assert facts["computational_efficiency"] is None
    assert "was not measured" in facts["bound_note"]


def test_a_dtype_without_a_peak_is_named(profile):
    without = ceilings(rates=(rate("int8", 1e12),))
    facts = bound_facts(dataclasses.replace(profile, ceilings=without))
    assert facts["bound_note"] == "the peak of this machine for float32 was not measured"


def test_the_bound_s_own_words_are_given(profile):
    known = dataclasses.replace(profile, ceilings=ceilings())
    facts = bound_facts(known)
    assert facts["bound_note"] == str(known.model_bound)
    assert facts["bottleneck"] == known.model_bound.bound


def test_the_rate_of_all_work_is_the_one_over_the_peak(profile):
    known = dataclasses.replace(profile, ceilings=ceilings())
    facts = bound_facts(known)
    reached = facts["achieved_gflops_per_second"] * 1e9
    assert reached == pytest.approx((profile.flops + profile.other_flops) / profile.latency.median)
    peak = known.ceilings.peak_flops("float32")
    assert facts["computational_efficiency"] == pytest.approx(reached / peak)


def test_what_only_moves_bytes_is_memory_bound():
    model, tokens = Embedding(10, 4), np.array([[1, 2, 3]])
    known = dataclasses.replace(
        profile_model(model, tokens, runs=3, ceilings=False), ceilings=ceilings()
    )
    facts = bound_facts(known)
    assert (known.flops, known.other_flops) == (0, 0)
    assert facts["bottleneck"] == "memory"
    assert (facts["is_memory_bound"], facts["is_compute_bound"]) == (True, False)
    assert facts["computational_efficiency"] == facts["arithmetic_intensity"] == 0
    moved = known.bytes_moved / known.latency.median
    assert facts["attainable_efficiency"] == pytest.approx(moved / known.model_bound.bandwidth)


def test_times_of_the_phases_are_medians_that_add_up():
    model, x = make_model("core"), make_input("core")
    profile = profile_model(model, x, runs=5, ceilings=False, training=True, optimizer=None)
    facts = backward_facts(profile, SampleFlops(10, 60, BATCH), SampleFlops(25, 150, BATCH))
    seconds = sorted(
        sum(each.end - each.start for each in run if each.path == BACKWARD) for run in profile.runs
    )
    assert facts["backward_latency_ms"] == pytest.approx(seconds[2] * 1e3)
    assert facts["total_latency_ms"] == pytest.approx(
        facts["forward_latency_ms"] + facts["backward_latency_ms"]
    )
    assert (facts["backward_flops"], facts["total_flops"]) == (15, 25)

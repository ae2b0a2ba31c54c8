import dataclasses

from example_profiles import CALLS, KINDS, example_profile, layer_calls, operation, training_profile
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.measure.samples import Samples
from tinytorch.models.records import LayerCall
from tinytorch.profiling.layers import (
    layer_spans,
    operation_spans,
    typical_run,
)


def check_nesting(spans):
    """Spans of one track are inside of each other or apart, and their depth says so."""
    for track in {span.track for span in spans}:
        opened = []
        for span in (each for each in spans if each.track == track):
            assert span.begin_ns <= span.end_ns
            assert len(opened) >= span.depth
            del opened[span.depth :]
            for outer in opened:
                assert outer.begin_ns <= span.begin_ns <= span.end_ns <= outer.end_ns
            opened.append(span)


def with_operations(records):
    base = example_profile()
    return example_profile(recording=dataclasses.replace(base.recording, operations=tuple(records)))


def test_the_typical_run_has_the_median_total():
    profile = example_profile(watched=Samples("watched", (0.03, 0.01, 0.02, 0.04)))
    assert typical_run(profile) == 2


def test_layers_are_inside_of_the_call_and_of_each_other():
    spans = layer_spans(example_profile())
    assert [(span.name, span.depth) for span in spans] == [
        ("example", 0),
        ("Net", 1),
        ("blocks.0", 2),
        ("blocks.0.fc", 3),
        ("blocks.1", 2),
        ("blocks.1.fc", 3),
        ("head", 2),
    ]
    check_nesting(spans)
    assert (spans[2].begin_ns, spans[2].end_ns) == (1_000_000, 4_000_000)


def test_a_layer_says_what_it_costs():
    facts = {span.name: span.facts for span in layer_spans(example_profile())}
    assert facts["head"]["macs per model call"] == 500
    assert facts["head"]["first input"] == ["float32 (4, 10)"]
    assert facts["blocks.0"]["kind"] == "Block"


def test_the_backward_pass_says_what_it_costs():
    facts = {span.name: span.facts for span in layer_spans(training_profile())}
    assert facts["<backward>"]["macs per model call"] == 2500
    assert facts["<update>"]["bytes moved per model call"] == 400


def test_of_two_calls_with_the_same_times_the_caller_is_outside():
    calls = (LayerCall("blocks.0.fc", 0.0, 0.01), LayerCall("blocks.0", 0.0, 0.01))
    spans = layer_spans(example_profile(runs=(calls,) * 4))
    assert [span.name for span in spans] == ["example", "blocks.0", "blocks.0.fc"]


@given(st.lists(st.tuples(st.sampled_from(list(KINDS)), st.floats(0, 12), st.floats(0, 5))))
def test_layers_nest_whatever_the_clock_says(calls):
    run = tuple(LayerCall(path, start / 1e3, (start + more) / 1e3) for path, start, more in calls)
    check_nesting(layer_spans(example_profile(runs=(run,) * 4)))


def test_operations_are_inside_of_their_layers():
    spans = operation_spans(example_profile())
    check_nesting(spans)
    assert [(span.name, span.depth) for span in spans] == [
        ("Net", 0),
        ("blocks.0", 1),
        ("blocks.0.fc", 2),
        ("linear", 3),
        ("relu", 2),
        ("blocks.1", 1),
        ("blocks.1.fc", 2),
        ("linear", 3),
        ("relu", 2),
        ("head", 1),
        ("linear", 2),
        ("odd", 2),
    ]


def test_every_phase_has_its_track():
    spans = operation_spans(training_profile())
    assert list(dict.fromkeys(span.track for span in spans)) == ["forward", "backward", "update"]
    check_nesting(spans)
    (update,) = [span for span in spans if span.track == "update"]
    assert (update.name, update.depth) == ("adam_step", 0)


def test_an_operation_says_what_it_costs():
    linear = next(span for span in operation_spans(example_profile()) if span.name == "linear")
    assert linear.facts["macs"] == 1000
    assert linear.facts["inputs"] == linear.facts["outputs"] == ["float32 (4, 10)"]
    odd = next(span for span in operation_spans(example_profile()) if span.name == "odd")
    assert odd.facts["family"] == "not counted"


def test_operations_that_queue_up_run_one_after_the_other():
    # A program starts three operations at once; each keeps the device busy for 2 ms.
    queued = [operation("linear", "head", 0.001 + 1e-6 * index, 0.002) for index in range(3)]
    spans = [span for span in operation_spans(with_operations(queued)) if span.name == "linear"]
    assert [span.begin_ns for span in spans] == [1_000_000, 3_000_000, 5_000_000]


@given(
    st.lists(
        st.tuples(st.sampled_from([*KINDS, None]), st.floats(0, 1e-2), st.floats(0, 1e-3)),
        max_size=20,
    )
)
def test_operations_nest_wherever_they_ran(places):
    records = [operation("linear", path, start, lasts) for path, start, lasts in places]
    spans = operation_spans(with_operations(records))
    check_nesting(spans)
    assert sum(span.name == "linear" for span in spans) == len(places)


def test_no_operations_give_no_spans():
    assert operation_spans(with_operations([])) == ()


def test_calls_of_the_example_are_in_the_order_in_which_they_end():
    ends = [call.end for call in layer_calls(CALLS)]
    assert ends == sorted(ends)

import gc
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from classic_models import BATCH, KINDS, OUTPUTS, leaving_no_trace, make_input, make_model
from parts import require_part

from tinytorch import Tensor
from tinytorch.errors import SettingError
from tinytorch.profiling.context import (
    RUNS,
    WARMUP,
    SimpleProfiler,
    profile,
    profile_function,
    size_in_bytes,
)

CONTRACT = {
    "wall_time",
    "cpu_time",
    "cpu_efficiency",
    "name",
    "memory_delta_mb",
    "peak_memory_mb",
    "result_size_mb",
}
MEGABYTE = 2**20


def allocate(megabytes, *, scratch=0):
    bytearray(scratch * MEGABYTE)
    return np.ones(megabytes * MEGABYTE, np.uint8)


# ---------------------------------------------------------------- SimpleProfiler


def test_the_keys_are_those_of_the_contract():
    facts = SimpleProfiler().profile(allocate, 1, name="allocate")
    assert facts.keys() >= CONTRACT
    assert facts["name"] == "allocate"


def test_everything_is_measured():
    facts = SimpleProfiler().profile(allocate, 2, scratch=5)
    assert facts["wall_time"] > 0
    assert facts["cpu_efficiency"] == facts["cpu_time"] / facts["wall_time"]
    assert facts["memory_delta_mb"] == pytest.approx(2, abs=0.1)
    assert facts["peak_memory_mb"] == pytest.approx(5, abs=0.1)
    assert facts["result_size_mb"] == 2.0
    assert facts["result"].nbytes == 2 * MEGABYTE


def test_waiting_takes_wall_time_but_no_processor_time(monkeypatch):
    from time import sleep

    facts = SimpleProfiler(track_memory=False).profile(sleep, 0.01)
    assert facts["cpu_efficiency"] < 0.5


@pytest.mark.parametrize(
    ("warmup", "calls"), [(True, WARMUP + 2 * RUNS + 1), (False, 2 * RUNS + 1)]
)
def test_it_is_called_as_often_as_documented(warmup, calls):
    seen = []
    SimpleProfiler().profile(lambda: seen.append(None), warmup=warmup)
    assert len(seen) == calls


def test_what_is_not_tracked_is_none():
    facts = SimpleProfiler(track_memory=False, track_cpu=False).profile(allocate, 1)
    missing = {name for name in CONTRACT if facts[name] is None}
    assert missing == CONTRACT - {"wall_time", "name"}
    assert facts["result"].nbytes == MEGABYTE


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_profiled(kind):
    model, x = make_model(kind), make_input(kind)
    getattr(model, "inner", model).eval()
    with leaving_no_trace(model):
        facts = profile_function(model, x)
    assert facts["result_size_mb"] * MEGABYTE == BATCH * OUTPUTS * 4
    assert facts["peak_memory_mb"] * MEGABYTE >= BATCH * OUTPUTS * 4


def test_profile_function_passes_everything_on():
    facts = profile_function(allocate, 1, name="mine", warmup=False, scratch=2)
    assert facts["name"] == "mine"
    assert facts["peak_memory_mb"] == pytest.approx(2, abs=0.1)


def test_an_exception_leaves_everything_as_it_was():
    with pytest.raises(ZeroDivisionError):
        SimpleProfiler().profile(lambda: 1 / 0)
    assert (gc.isenabled(), tracemalloc.is_tracing()) == (True, False)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(SettingError, match="func is a int"):
        profile_function(3)


# ---------------------------------------------------------------- the decorator


def test_a_bare_decorator_reports_each_call_and_returns_the_result(capsys):
    @profile
    def double(x, *, plus=0):
        """Twice as much."""
        return 2 * x + plus

    assert (double(4), double(4, plus=1)) == (8, 9)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(double.calls) == 2
    assert "double: " in lines[0]
    assert double.__doc__ == "Twice as much."
    assert double.__name__ == "double"


def test_with_arguments_it_collects_quietly(capsys):
    @profile(name="half", quiet=True)
    def halve(x):
        return x / 2

    assert halve(4) == 2
    assert capsys.readouterr().out == ""
    assert [seen.name for seen in halve.calls] == ["half"]
    assert halve.calls[0].wall_time > 0


def test_each_call_runs_the_function_once():
    seen = []
    profile(quiet=True)(seen.append)(1)
    assert seen == [1]


def test_methods_can_be_decorated():
    class Model:
        @profile(quiet=True)
        def forward(self, x):
            return x + 1

    assert Model().forward(2) == 3
    assert len(Model.forward.calls) == 1


def test_recursion_is_collected_from_the_inside_out():
    @profile(quiet=True)
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    assert factorial(3) == 6
    times = [seen.wall_time for seen in factorial.calls]
    assert len(times) == 4
    assert times == sorted(times)


def test_an_exception_passes_and_is_named(capsys):
    @profile
    def fail():
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        fail()
    assert fail.calls[0].raised == "KeyError"
    assert "raised KeyError" in capsys.readouterr().out


def test_functions_that_only_make_an_object_are_refused():
    async def later():
        pass

    def items():
        yield 1

    for function in (later, items):
        with pytest.raises(SettingError, match="give a function that runs it to its end"):
            profile(function)


@pytest.mark.parametrize("thing", [3, dict])
def test_what_is_no_function_is_refused(thing):
    with pytest.raises(SettingError, match="@profile decorates functions"):
        profile(thing)


# ---------------------------------------------------------------- sizes


def test_sizes_are_of_arrays_and_tensors_each_once():
    array = np.ones(10)
    assert size_in_bytes(array) == 80
    assert size_in_bytes([array, array, (np.ones(5),)]) == 120
    assert size_in_bytes({"a": Tensor(np.ones(3, np.float32))}) == 12
    assert size_in_bytes(None) == 0


def test_tensors_of_torch_are_sized():
    torch = require_part("torch")
    assert size_in_bytes((torch.ones(3), torch.ones(2, dtype=torch.float16))) == 16


def test_dataclasses_are_looked_into_and_other_objects_weigh_themselves():
    @dataclass
    class Output:
        logits: np.ndarray
        name: str

    assert size_in_bytes(Output(np.ones(4), "")) == 32 + size_in_bytes("")
    assert size_in_bytes("text") > 4

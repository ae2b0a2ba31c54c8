import logging
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.errors import SettingError
from tinytorch.models import pytorch_compile
from tinytorch.models.pytorch_compile import (
    MODES,
    compiled,
    quiet_compiler,
    refusals,
    uses_cuda_graphs,
    why_it_failed,
    why_no_compiler,
)

X = torch.ones(2, 4)


class Counting:
    """A backend that counts the graphs that it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, examples):
        self.graphs += 1
        return graph.forward


def without_gradients(call, *arguments, **settings):
    with torch.no_grad():
        return call(*arguments, **settings)


@pytest.mark.parametrize("name", ["torch._inductor", "torch.utils.cpp_extension"])
def test_the_compiler_is_quiet_and_speaks_again_afterwards(name):
    logger = logging.getLogger(name)
    before = logger.level
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with quiet_compiler():
            warnings.warn("about its own code", UserWarning, stacklevel=1)
            assert not logger.isEnabledFor(logging.WARNING)
            assert logger.isEnabledFor(logging.ERROR)
        assert seen == []
        warnings.warn("about yours", UserWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == ["about yours"]
    assert logger.level == before


# ---------------------------------------------------------------- what it needs


def test_this_machine_can_compile_for_its_processor():
    assert why_no_compiler("cpu") == ""


def test_a_missing_compiler_is_named():
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        reason = why_no_compiler("cpu")
    assert "no C++ compiler" in reason
    assert "no-such-compiler" in reason
    assert "CXX" in reason


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: False)
    assert "install triton" in why_no_compiler("cuda")


def test_a_device_that_triton_does_not_know_is_named(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: True)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert "compute capability" in why_no_compiler("cuda")


def test_triton_needs_a_c_compiler(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: True)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setenv("CC", sys.executable)
    assert why_no_compiler("cuda") == ""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler (no-such-compiler)" in why_no_compiler("cuda")


def test_a_python_that_torch_does_not_know_is_named(monkeypatch):
    def check():
        raise RuntimeError("Python 3.99+ not yet supported for torch.compile")

    monkeypatch.setattr("torch._dynamo.eval_frame.check_if_dynamo_supported", check)
    assert "Python 3.99+ not yet supported" in why_no_compiler("cpu")


def test_other_devices_are_not_compiled_for():
    assert "on meta" in why_no_compiler("meta")


# ---------------------------------------------------------------- compiling


def test_modes_are_checked():
    with pytest.raises(SettingError, match=r"mode is one of default, .* got 'fast'"):
        compiled(nn.Linear(2, 2), mode="fast")


def test_weights_are_packed_in_one_graph_only():
    with pytest.raises(SettingError, match="needs fullgraph=True"):
        compiled(nn.Linear(2, 2), freeze=True)


def test_modes_with_graphs_are_known():
    assert [mode for mode in MODES if uses_cuda_graphs(mode)] == ["reduce-overhead", "max-autotune"]


def test_a_compiled_call_computes_the_same():
    model = nn.Linear(4, 4)
    call = compiled(model, backend="eager")
    torch.testing.assert_close(without_gradients(call, X), model(X))
    torch.testing.assert_close(without_gradients(call, input=X), model(X))


def test_more_models_of_a_class_can_be_compiled_than_torch_allows_for_one():
    backend = Counting()
    for width in range(1, 11):  # torch would stop after 8
        call = compiled(nn.Sequential(nn.Linear(4, width), nn.ReLU()), backend=backend)
        without_gradients(call, X)
    assert backend.graphs == 10


def test_sizes_of_one_model_do_not_become_open_in_another():
    backend = Counting()
    for _ in range(2):
        call = compiled(nn.Linear(4, 3), backend=backend)
        for rows in (2, 3, 4):
            without_gradients(call, torch.ones(rows, 4))
    assert backend.graphs == 4  # for each model one for two rows, and one for any number of them


def test_threads_leave_the_setting_for_packing_as_it_was(monkeypatch):
    from torch._inductor import config

    inside, leave = Event(), Event()

    def slow():
        inside.set()
        assert config.freezing is True
        return leave.wait(10)

    monkeypatch.setattr(pytorch_compile, "own_entrance", lambda call: call)
    monkeypatch.setattr(torch, "compile", lambda call, **settings: call)
    call = compiled(slow, freeze=True, fullgraph=True)
    with ThreadPoolExecutor(1) as others:
        other = others.submit(call)
        assert inside.wait(10)
        compiled(lambda: None, freeze=True, fullgraph=True)()
        leave.set()
        assert other.result(10) is True
        assert others.submit(lambda: config.freezing).result(10) is False
    assert config.freezing is False


def test_what_cannot_be_compiled_is_refused_before_it_runs():
    call = compiled(nn.Linear(4, 4), backend="eager", dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=1):
        without_gradients(call, X)
        with pytest.raises(refusals()):
            without_gradients(call, torch.ones(3, 4))


def test_what_failed_is_inside_of_torchs_error():
    error = RuntimeError("backend='inductor' raised:\nCppCompileError: no\n\na.cpp:3: error: bad\n")
    assert why_it_failed(error) == "CppCompileError: no (a.cpp:3: error: bad)"
    assert why_it_failed(ValueError("simple")) == "ValueError: simple"
    assert why_it_failed(ValueError()) == "ValueError"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("freeze", [False, True])
def test_inductor_computes_the_same(freeze):
    from torch._inductor import config

    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    call = compiled(model, freeze=freeze, fullgraph=freeze, options={"epilogue_fusion": True})
    torch.testing.assert_close(without_gradients(call, X), without_gradients(model, X))
    assert config.freezing is False

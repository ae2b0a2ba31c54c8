import threading

import pytest
from classic_models import KINDS, call, leaving_no_trace, make_input, make_model
from parts import require_part

from tinytorch import Tensor
from tinytorch.models.costs import COSTS
from tinytorch.profiling.profiler import OperationTotals, operation_name


def watched(block):
    totals = OperationTotals()
    with totals.watching():
        block()
    return {operation.name: operation for operation in totals.operations}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_runs_is_seen_in_both_frameworks(kind):
    model, x = make_model(kind), make_input(kind)
    getattr(model, "inner", model).eval()
    with leaving_no_trace(model):
        seen = watched(lambda: call(model, x))
    assert seen["Matrix multiplication"].calls == 2
    assert seen["ReLU"].calls == 1


@pytest.mark.parametrize("kind", ["core", "torch"])
def test_the_backward_pass_is_seen(kind):
    model, x = make_model(kind), make_input(kind)
    seen = watched(lambda: call(model, x).sum().backward())
    # Two products forward; backward two gradients of weights and one of an activation.
    assert seen["Matrix multiplication"].calls == 5
    assert seen["ReLU"].calls == 2


def test_both_frameworks_in_one_block_are_added_up():
    torch = require_part("torch")
    ours, theirs = Tensor([[1.0]]), torch.ones(1, 1)
    seen = watched(lambda: (ours @ ours, theirs @ theirs))
    assert seen["Matrix multiplication"].kinds == ("matmul", "aten.mm")


def test_shares_add_up_and_the_slowest_comes_first():
    totals = OperationTotals()
    for kind, seconds in (("add", 1.0), ("matmul", 5.0), ("linear", 3.0), ("exp", 1.0)):
        totals.see(kind, seconds)
    names = [operation.name for operation in totals.operations]
    assert names == ["Matrix multiplication", "Addition", "Exp"]
    assert [operation.share for operation in totals.operations] == [0.8, 0.1, 0.1]
    assert totals.seconds == 10.0


def test_torch_s_own_marks_are_no_operations():
    totals = OperationTotals()
    totals.see("profiler._record_function_enter_new", 1.0)
    assert totals.operations == ()


def test_what_runs_after_the_block_or_in_another_thread_is_not_seen():
    def work():
        return Tensor([1.0]) + 1

    totals = OperationTotals()
    with totals.watching():
        other = threading.Thread(target=work)
        other.start()
        other.join()
    work()
    assert totals.operations == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("matmul", "Matrix multiplication"),
        ("aten.addmm", "Matrix multiplication"),
        ("quantized.linear_dynamic", "Matrix multiplication"),
        ("conv2d_backward_weight", "Convolution"),
        ("aten._scaled_dot_product_flash_attention_for_cpu", "Attention"),
        ("layer_norm_backward", "Layer normalization"),
        ("aten._softmax", "Softmax"),
        ("cross_entropy", "Cross entropy"),
        ("adam_step", "Adam update"),
        ("aten._foreach_add", "Addition"),
        ("aten.mul", "Multiplication"),
        ("aten.threshold_backward", "ReLU"),
        ("aten.some_new_thing", "Some new thing"),
        ("exp", "Exp"),
    ],
)
def test_operations_have_names_that_people_use(kind, name):
    assert operation_name(kind) == name


def test_every_product_has_a_name_of_its_own_kind():
    products = [kind for kind, rule in COSTS.items() if rule.family == "contraction"]
    names = {operation_name(kind) for kind in products}
    assert names == {
        "Attention",
        "Convolution",
        "Matrix multiplication",
        "Recurrent layer",
        "Transformer layer",
    }

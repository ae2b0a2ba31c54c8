import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from tinytorch.core.autograd import (
    backward,
    check_gradients,
    enable_autograd,
    is_grad_enabled,
    no_grad,
)
from tinytorch.core.operations import Operation
from tinytorch.core.tensor import Tensor, apply, concatenate, where
from tinytorch.errors import DTypeError, GraphError, ShapeError


def leaf(*values):
    return Tensor(np.array(values, np.float64), requires_grad=True)


# ---------------------------------------------------------------- graphs


def test_a_tensor_that_is_used_often_gets_all_its_gradients():
    x = leaf(2.0, 3.0)
    (x * x + x * 3 + x + x).sum().backward()
    assert x.grad.tolist() == [2 * 2 + 5, 2 * 3 + 5]


def test_both_inputs_of_an_operation_may_be_the_same_tensor():
    x = leaf(2.0, 3.0)
    (x - x).sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_both_sides_of_a_diamond_arrive_before_its_tip_hands_on():
    x = leaf(2.0)
    tip = x * x
    left, right = tip * 3, tip.exp()
    (left * right).sum().backward()
    # d/dx 3 x^2 exp(x^2) = 6 x exp(x^2) (1 + x^2); a handful of rounded factors
    np.testing.assert_allclose(x.grad, 6 * 2 * np.exp(4) * 5, rtol=1e-14)


def test_a_ladder_of_diamonds_is_walked_once_per_tensor():
    x = leaf(1.0)
    y = x
    for _ in range(60):  # 2^60 paths
        y = y + y
    y.sum().backward()
    assert x.grad.tolist() == [2.0**60]


def test_a_shortcut_past_a_long_branch_waits_for_it():
    x = leaf(2.0)
    y = x * 1
    long = y
    for _ in range(5):
        long = long * 2
    (y + long).sum().backward()
    assert x.grad.tolist() == [33]


def test_five_thousand_operations_do_not_reach_the_recursion_limit():
    assert sys.getrecursionlimit() < 5000
    x = leaf(1.0)
    y = x
    for _ in range(5000):
        y = y + 1
    y.sum().backward()
    assert x.grad.tolist() == [1]


LONG_CHAIN = """
import numpy as np
from tinytorch import Tensor
x = Tensor(np.zeros(1), requires_grad=True)
y = x
for _ in range(50_000):
    y = y + 1
{}
del y
print("alive", x.grad)
"""


@pytest.mark.parametrize(
    ("step", "left"), [("", "None"), ("y.sum().backward(retain_graph=True)", "[1.]")]
)
def test_a_long_graph_is_deleted_without_a_stack_overflow(step, left):
    # In its own process: what would go wrong is a crash.
    ran = subprocess.run(
        [sys.executable, "-c", LONG_CHAIN.format(step)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, f"alive {left}")


def test_gradients_reach_leaves_through_both_tracked_and_plain_inputs():
    x, constant = leaf(2.0), Tensor(np.array([5.0]))
    concatenate([constant, x * constant]).sum().backward()
    assert x.grad.tolist() == [5]
    assert constant.grad is None


# ---------------------------------------------------------------- freeing


def test_a_second_backward_says_how_to_keep_the_graph():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(GraphError, match=r"freed by an earlier backward.*retain_graph=True"):
        y.backward()
    assert x.grad.tolist() == [4]


def test_a_freed_part_of_another_graph_is_found_before_any_gradient_changes():
    x, other = leaf(2.0), leaf(1.0)
    shared = x * x
    shared.sum().backward()
    before = x.grad.copy()
    with pytest.raises(GraphError, match="Multiply was freed"):
        (shared * other).sum().backward()
    assert x.grad.tolist() == before.tolist()
    assert other.grad is None


def test_backward_releases_what_was_saved():
    x = leaf(1.0, 2.0)
    squared = x * x
    y = squared.exp()
    intermediate = weakref.ref(squared)
    operation = y.creator
    assert operation.saved is not None
    del squared
    assert intermediate() is not None
    y.sum().backward()
    gc.collect()
    assert operation.saved is None
    assert operation.inputs == ()
    assert intermediate() is None


def test_a_kept_graph_can_run_again_and_gradients_add_up():
    x = leaf(3.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [3 * 6]
    with pytest.raises(GraphError):
        y.backward()


def test_gradients_of_two_graphs_add_up():
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 6]
    x.zero_grad()
    assert x.grad is None


def test_an_operation_that_fails_leaves_no_half_freed_state_behind():
    class Broken(Operation):
        def forward(self, x):
            return x.copy()

        def backward(self, grad):
            raise ArithmeticError("broken on purpose")

    x = leaf(1.0)
    with pytest.raises(ArithmeticError, match="on purpose"):
        apply(Broken(), x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2]


# ---------------------------------------------------------------- no_grad


def test_no_grad_builds_no_graph():
    x = leaf(1.0)
    with no_grad():
        y = x * 2
        assert not is_grad_enabled()
    assert is_grad_enabled()
    assert y.creator is None
    assert not y.requires_grad
    assert (x * 2).creator is not None


def test_no_grad_decorates_functions():
    @no_grad()
    def double(x):
        return x * 2

    x = leaf(1.0)
    assert double(x).creator is None
    assert double(x).creator is None
    assert (x * 2).creator is not None


def test_no_grad_nests_also_with_the_same_object():
    guard = no_grad()
    with guard:
        with guard, no_grad():
            assert not is_grad_enabled()
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_an_exception_ends_no_grad():
    with pytest.raises(KeyError), no_grad():
        raise KeyError("on purpose")
    assert is_grad_enabled()


def test_no_grad_holds_for_its_thread_only():
    seen = []

    def look():
        seen.append(is_grad_enabled())
        with no_grad():
            seen.append(is_grad_enabled())

    with no_grad():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert not is_grad_enabled()
    assert seen == [True, False]


def test_one_decorated_function_may_run_in_two_threads_at_once():
    inside, leave = threading.Barrier(2), threading.Event()
    after = []

    @no_grad()
    def compute(wait):
        inside.wait(timeout=30)
        if wait:
            leave.wait(timeout=30)

    def work(wait):
        compute(wait)
        after.append(is_grad_enabled())
        leave.set()

    threads = [threading.Thread(target=work, args=(wait,)) for wait in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert after == [True, True]


def test_enable_autograd_may_be_called_any_number_of_times():
    for _ in range(3):
        enable_autograd()
        assert is_grad_enabled()
    x = leaf(3.0)
    (x * x).sum().backward()
    assert x.grad.tolist() == [6]


# ---------------------------------------------------------------- memory of gradients

SHARERS = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "reshaped": lambda x, y: x.reshape(6) + y.reshape(6),
    "transposed": lambda x, y: x.T + y.T,
    "broadcast": lambda x, y: x.broadcast_to(4, 2, 3) + y,
    "concatenated": lambda x, y: concatenate([x, y]),
    "sliced": lambda x, y: x[:1] + y[1:],
    "chosen": lambda x, y: where(True, x, y),
    "summed": lambda x, y: x.sum() + y.sum(),
    "a long way": lambda x, y: (x.reshape(3, 2).T.reshape(2, 3) + y.T.T)[...],
    "multiplied": lambda x, y: x * y,
}


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("name", SHARERS)
def test_no_two_leaves_share_the_memory_of_their_gradients(name, scalar):
    x, y = (Tensor(np.ones((2, 3)), requires_grad=True) for _ in range(2))
    output = SHARERS[name](x, y)
    upstream = np.ones(output.shape)
    if scalar:
        output.sum().backward()
    else:
        output.backward(upstream)
    before = y.grad.copy()
    assert not np.shares_memory(x.grad, y.grad)
    assert not np.shares_memory(x.grad, upstream)
    x.grad *= 100  # must be writable, and nobody else's
    assert (y.grad == before).all()
    assert (upstream == 1).all()


def test_a_leaf_does_not_share_the_gradient_that_was_passed_in():
    x, gradient = leaf(1.0, 2.0), np.ones(2)
    x.backward(gradient)
    x.grad *= 3
    assert gradient.tolist() == [1, 1]


def test_kept_gradients_of_computed_tensors_own_their_memory_too():
    x = leaf(1.0, 2.0)
    a, b = (x * 2).retain_grad(), (x * 3).retain_grad()
    total = (a + b).retain_grad()
    total.sum().backward()
    for tensor in (a, b, total):
        tensor.grad *= 10
    assert [tensor.grad.tolist() for tensor in (a, b, total)] == [[10, 10]] * 3
    assert x.grad.tolist() == [5, 5]


def test_the_gradient_of_a_number_is_an_array():
    x = Tensor(np.array(3.0), requires_grad=True)
    (x * x + x).backward()
    (x * x).backward()
    assert isinstance(x.grad, np.ndarray)
    assert x.grad.shape == ()
    assert float(x.grad) == 7 + 6


# ---------------------------------------------------------------- dtypes


def test_a_gradient_has_the_dtype_of_its_tensor():
    single = Tensor(np.ones(3, np.float32), requires_grad=True)
    double = Tensor(np.ones(3, np.float64), requires_grad=True)
    product = single * double
    assert product.dtype == np.float64
    (product.sum() + (double @ single)).backward()
    assert single.grad.dtype == np.float32
    assert double.grad.dtype == np.float64
    assert single.grad.tolist() == double.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, bool])
def test_integers_have_no_gradients(dtype):
    with pytest.raises(DTypeError, match=rf"{np.dtype(dtype)}.*astype\(np.float32\)"):
        Tensor(np.zeros(2, dtype), requires_grad=True)


def test_floats_times_integers_have_gradients_for_the_floats():
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    (x * Tensor(np.array([2, 3]))).sum().backward()
    assert x.grad.dtype == np.float32
    assert x.grad.tolist() == [2, 3]


# ---------------------------------------------------------------- where backward starts


def test_retain_grad_keeps_the_gradient_of_a_computed_tensor():
    x = leaf(2.0)
    kept, other = (x * 3).retain_grad(), x * 5
    (kept * other).sum().backward()
    assert kept.grad.tolist() == [10]
    assert other.grad is None


def test_backward_from_many_elements_asks_for_a_scalar_or_a_gradient():
    with pytest.raises(
        GraphError, match=r"shape \(2,\).*\.sum\(\) or \.mean\(\).*pass the gradient"
    ):
        (leaf(1.0, 2.0) * 2).backward()


def test_backward_from_one_element_of_any_rank_works():
    x = Tensor(np.full((1, 1), 3.0), requires_grad=True)
    (x * x).backward()
    assert x.grad.tolist() == [[6]]


def test_a_gradient_of_another_shape_is_refused_with_both_shapes():
    with pytest.raises(ShapeError, match=r"gradient has shape \(3,\), the tensor \(2,\)"):
        (leaf(1.0, 2.0) * 2).backward(np.ones(3))


@pytest.mark.parametrize("gradient", [[1, 10], np.array([1, 10]), Tensor([1.0, 10.0])])
def test_a_gradient_may_be_a_list_an_array_or_a_tensor(gradient):
    x = leaf(1.0, 2.0)
    (x * 2).backward(gradient)
    assert x.grad.tolist() == [2, 20]


def no_graph_by_constants():
    return (Tensor([1.0]) * 2).sum()


def no_graph_by_no_grad():
    with no_grad():
        return (leaf(1.0) * 2).sum()


def no_graph_by_detach():
    return (leaf(1.0) * 2).sum().detach()


@pytest.mark.parametrize("make", [no_graph_by_constants, no_graph_by_no_grad, no_graph_by_detach])
def test_backward_without_a_graph_says_where_it_may_have_gone(make):
    with pytest.raises(GraphError, match=r"without a graph.*requires_grad=True.*no_grad\(\)"):
        make().backward()


def test_backward_from_a_leaf_gives_it_the_gradient_itself():
    x = Tensor(np.array(3.0), requires_grad=True)
    backward(x)
    assert float(x.grad) == 1


# ---------------------------------------------------------------- the check itself


class WrongSquare(Operation):
    def forward(self, x):
        self.saved = x
        return x * x

    def backward(self, grad):
        return (grad * self.saved * np.array([2.0, 2.1, 2.0]),)


def test_check_gradients_finds_the_element_that_is_wrong():
    with pytest.raises(GraphError, match=r"input 1 at \(1,\): .* 4\.2.*differences 4"):
        check_gradients(
            lambda a, b: (a + apply(WrongSquare(), b)).sum(), leaf(1, 1, 1), leaf(1, 2, 3)
        )


def test_check_gradients_puts_the_values_back():
    x = leaf(1.0, 2.0)
    check_gradients(lambda x: (x * x).sum(), x)
    assert x.data.tolist() == [1, 2]


def test_check_gradients_needs_float64():
    with pytest.raises(DTypeError, match="need float64, got float32"):
        check_gradients(lambda x: x.sum(), Tensor([1.0], requires_grad=True))


def test_check_gradients_sees_a_gradient_that_is_missing():
    with pytest.raises(GraphError, match="backward computes 0"):
        check_gradients(lambda x: (Tensor(x.data * 2) + x * 0).sum(), leaf(1.0))

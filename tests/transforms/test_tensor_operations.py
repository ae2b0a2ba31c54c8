import numpy as np
import pytest

from tinytorch import Tensor
from tinytorch.core.autograd import check_gradients
from tinytorch.core.kernels import REFERENCE
from tinytorch.errors import SettingError
from tinytorch.transforms.optimized_backend import TENSOR_OPERATIONS

A, B = (2, 3), (3, 4)
IMAGE = (1, 2, 5, 5)
WINDOW = {"kernel": 2}
# Operation -> shapes of differentiable arguments, other arguments, settings
CASES = {
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "power"), ([A, A], [], {})),
    **dict.fromkeys(("negative", "absolute", "exp", "log", "sqrt"), ([A], [], {})),
    **dict.fromkeys(("relu", "sigmoid", "tanh", "gelu", "softmax", "log_softmax"), ([A], [], {})),
    **dict.fromkeys(("sum", "mean", "max"), ([A], [], {})),
    "power_scalar": ([A], [], {"exponent": 3}),
    "matmul": ([A, B], [], {}),
    "linear": ([A, B, (4,)], [], {}),
    "attention": ([(2, 3, 4), (2, 5, 4), (2, 5, 4)], [], {"causal": True}),
    "layer_norm": ([A, (3,), (3,)], [], {}),
    "batch_norm": ([IMAGE, (2,), (2,)], [], {}),
    "conv2d": ([IMAGE, (3, 2, 3, 3), (3,)], [], {"padding": 1}),
    "max_pool2d": ([IMAGE], [], WINDOW),
    "avg_pool2d": ([IMAGE], [], WINDOW),
    "reshape": ([A], [], {"shape": (3, 2)}),
    "transpose": ([A], [], {}),
    "broadcast_to": ([A], [], {"shape": (4, 2, 3)}),
    "getitem": ([A], [], {"index": (slice(None), 1)}),
    "embedding": ([B], [np.array([0, 2, 0])], {}),
    "cross_entropy": ([A], [np.array([0, 2])], {}),
    "binary_cross_entropy": ([A], [np.full(A, 0.3)], {}),
    "binary_cross_entropy_with_logits": ([A], [np.full(A, 0.3)], {}),
}
SPECIAL = {"where", "concatenate"}


def test_every_operation_is_one_of_the_table_and_tested():
    assert TENSOR_OPERATIONS.keys() - REFERENCE.kernels.keys() == set()
    assert CASES.keys() | SPECIAL == TENSOR_OPERATIONS.keys()


@pytest.mark.parametrize("kind", CASES)
def test_gradients_are_those_of_central_differences(kind, rng):
    shapes, others, settings = CASES[kind]
    tensors = [Tensor(rng.uniform(0.1, 0.9, shape), requires_grad=True) for shape in shapes]

    def squared(*tensors):
        return (TENSOR_OPERATIONS[kind](*tensors, *others, **settings) ** 2).sum()

    check_gradients(squared, *tensors)
    assert all(tensor.grad is not None for tensor in tensors)


def test_choosing_and_joining_have_gradients(rng):
    a, b = (Tensor(rng.standard_normal(A), requires_grad=True) for _ in range(2))
    mask = rng.random(A) > 0.5
    check_gradients(lambda a, b: (TENSOR_OPERATIONS["where"](mask, a, b) ** 2).sum(), a, b)
    check_gradients(lambda a, b: (TENSOR_OPERATIONS["concatenate"]((a, b)) ** 2).sum(), a, b)
    assert a.grad is not None


def test_the_scale_of_attention_is_the_usual_one_unless_given(rng):
    query, key, value = (Tensor(rng.standard_normal((3, 4))) for _ in range(3))
    attention = TENSOR_OPERATIONS["attention"]
    np.testing.assert_array_equal(
        attention(query, key, value).data, attention(query, key, value, scale=0.5).data
    )
    assert not np.array_equal(
        attention(query, key, value).data, attention(query, key, value, np.eye(3)).data
    )


def test_linear_and_convolution_do_without_a_bias(rng):
    x, w = Tensor(rng.standard_normal(A)), Tensor(rng.standard_normal(B))
    np.testing.assert_array_equal(TENSOR_OPERATIONS["linear"](x, w).data, x.data @ w.data)
    images = Tensor(rng.standard_normal(IMAGE))
    kernel = Tensor(rng.standard_normal((3, 2, 1, 1)))
    assert TENSOR_OPERATIONS["conv2d"](images, kernel, stride=(2, 1)).shape == (1, 3, 3, 5)


def test_an_activation_may_follow_a_linear_map(rng):
    x, w = Tensor(rng.standard_normal(A), requires_grad=True), Tensor(rng.standard_normal(B))
    linear = TENSOR_OPERATIONS["linear"]
    check_gradients(lambda x: linear(x, w, activation="gelu").sum(), x)
    np.testing.assert_array_equal(linear(x, w, activation="relu").data, (x.data @ w.data).clip(0))
    with pytest.raises(SettingError, match="activation must be one of relu, gelu_tanh"):
        linear(x, w, activation="swish")

"""Operations: forward and derivative side by side, on arrays."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from tinytorch.core.dispatch import run
from tinytorch.core.kernels import Array, Backend
from tinytorch.core.kernels.reference_spatial import Pair
from tinytorch.errors import GraphError

# ---------------------------------------------------------------- differentiable operations: each
# is one small class with its forward and its derivative
#
# They work on arrays and know nothing of tensors; :func:`tinytorch.core.tensor.apply` runs one and
# links it into the graph.


# ---------------------------------------------------------------- what an operation is, and the
# arithmetic that many of them share

Gradients = tuple[Array | None, ...]


class Operation:
    """One differentiable operation, applied once.

    ``forward`` takes the arrays of the inputs and puts what the derivative needs into ``saved``.
    ``backward`` takes the gradient of the output and returns one gradient per input, or None where
    :meth:`wants` is false. A gradient is `grad` itself, a view of it, or a new array that nothing
    else references.
    """

    inputs: tuple[Any, ...] = ()
    saved: Any = None
    tracked = False
    freed = False
    path: str | None = None
    backend: Backend | None = None

    def forward(self, *arrays: Any, **settings: Any) -> Array:
        raise NotImplementedError

    def backward(self, grad: Array) -> Gradients:
        raise NotImplementedError

    def wants(self, position: int) -> bool:
        """Return whether the gradient of this input is needed."""
        inputs = self.inputs
        return position < len(inputs) and bool(inputs[position].requires_grad)

    def free(self) -> None:
        """Drop the graph behind this operation and what it saved."""
        self.inputs, self.saved, self.freed = (), None, True

    def check_not_freed(self) -> None:
        if self.freed:
            raise GraphError(
                f"the graph of {type(self).__name__} was freed by an earlier backward(); "
                "call backward(retain_graph=True) the first time, or run the forward pass again"
            )


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: sum `gradient` over the axes along which `shape` was repeated."""
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    repeated = [axis for axis, length in enumerate(shape, extra) if length == 1]
    total: Array = run("sum", gradient, axis=(*range(extra), *repeated), keepdims=True)
    return total.reshape(shape)


# ---------------------------------------------------------------- elementwise operations, with
# broadcasting where they take two inputs


class Binary(Operation):
    """An operation on two arrays that broadcast: derivatives are summed back to each shape."""

    def derivative(self, position: int, grad: Array) -> Array:
        """Return the gradient of one input, in the broadcast shape."""
        raise NotImplementedError

    def backward(self, grad: Array) -> Gradients:
        return tuple(
            sum_to_shape(self.derivative(position, grad), tensor.shape)
            if tensor.requires_grad
            else None
            for position, tensor in enumerate(self.inputs)
        )


class Add(Binary):
    def forward(self, a: Array, b: Array) -> Array:
        return run("add", a, b)

    def derivative(self, position: int, grad: Array) -> Array:
        return grad


class Subtract(Binary):
    def forward(self, a: Array, b: Array) -> Array:
        return run("subtract", a, b)

    def derivative(self, position: int, grad: Array) -> Array:
        return grad if position == 0 else run("negative", grad)


class Multiply(Binary):
    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        return run("multiply", a, b)

    def derivative(self, position: int, grad: Array) -> Array:
        return run("multiply", grad, self.saved[1 - position])


class Divide(Binary):
    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        return run("divide", a, b)

    def derivative(self, position: int, grad: Array) -> Array:
        a, b = self.saved
        slope = run("divide", grad, b)
        if position == 0:
            return slope
        return run("negative", run("multiply", slope, run("divide", a, b)))


class Power(Binary):
    """a ** b for tensors; a zero base gives its exponent a gradient of zero."""

    def forward(self, a: Array, b: Array) -> Array:
        result = run("power", a, b)
        self.saved = a, b, result
        return result

    def derivative(self, position: int, grad: Array) -> Array:
        a, b, result = self.saved
        if position == 0:
            # b a**(b - 1), and where b is zero 0 a**0, which is 0 for a zero base, too
            is_flat = run("equal", b, b.dtype.type(0))
            lower = run("where", is_flat, b, run("subtract", b, b.dtype.type(1)))
            slope = run("multiply", b, run("power", a, lower))
        else:
            one = a.dtype.type(1)
            is_zero = run("equal", a, a.dtype.type(0))
            slope = run("multiply", result, run("log", run("where", is_zero, one, a)))
        return run("multiply", grad, slope)


class ScalarPower(Operation):
    """x ** exponent for a plain number, which NumPy computes much faster than Power."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("power_scalar", x, exponent=self.exponent)

    def backward(self, grad: Array) -> Gradients:
        if self.exponent == 0:
            return (run("multiply", grad, self.saved.dtype.type(0)),)
        slope = run("power_scalar", self.saved, exponent=self.exponent - 1)
        slope = run("multiply", slope, slope.dtype.type(self.exponent))
        return (run("multiply", grad, slope),)


class Negative(Operation):
    def forward(self, x: Array) -> Array:
        return run("negative", x)

    def backward(self, grad: Array) -> Gradients:
        return (run("negative", grad),)


class Absolute(Operation):
    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("absolute", x)

    def backward(self, grad: Array) -> Gradients:
        return (run("multiply", grad, run("sign", self.saved)),)


class Exp(Operation):
    def forward(self, x: Array) -> Array:
        self.saved = run("exp", x)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        return (run("multiply", grad, self.saved),)


class Log(Operation):
    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("log", x)

    def backward(self, grad: Array) -> Gradients:
        return (run("divide", grad, self.saved),)


class Sqrt(Operation):
    def forward(self, x: Array) -> Array:
        self.saved = run("sqrt", x)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        half = self.saved.dtype.type(0.5)
        return (run("divide", run("multiply", grad, half), self.saved),)


class Where(Operation):
    """Choose from two tensors by a condition, a plain boolean array."""

    def __init__(self, condition: Array) -> None:
        self.condition = condition

    def forward(self, a: Array, b: Array) -> Array:
        return run("where", self.condition, a, b)

    def backward(self, grad: Array) -> Gradients:
        zero = grad.dtype.type(0)
        a, b = self.inputs
        grad_a = run("where", self.condition, grad, zero) if a.requires_grad else None
        grad_b = run("where", self.condition, zero, grad) if b.requires_grad else None
        return (
            None if grad_a is None else sum_to_shape(grad_a, a.shape),
            None if grad_b is None else sum_to_shape(grad_b, b.shape),
        )


# ---------------------------------------------------------------- activation functions


class _FromOutput(Operation):
    """An activation whose derivative is a function of its output."""

    kind: ClassVar[str]

    def forward(self, x: Array) -> Array:
        self.saved = run(self.kind, x)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved),)


class ReLU(_FromOutput):
    kind = "relu"


class Sigmoid(_FromOutput):
    kind = "sigmoid"


class Tanh(_FromOutput):
    kind = "tanh"


class GELU(Operation):
    def __init__(self, approximate: str) -> None:
        self.approximate = approximate

    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("gelu", x, approximate=self.approximate)

    def backward(self, grad: Array) -> Gradients:
        return (run("gelu_backward", grad, self.saved, approximate=self.approximate),)


class SiLU(Operation):
    def forward(self, x: Array) -> Array:
        self.saved = x
        return run("silu", x)

    def backward(self, grad: Array) -> Gradients:
        return (run("silu_backward", grad, self.saved),)


class _AlongAxis(_FromOutput):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.saved = run(self.kind, x, axis=self.axis)
        return self.saved

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved, axis=self.axis),)


class Softmax(_AlongAxis):
    kind = "softmax"


class LogSoftmax(_AlongAxis):
    kind = "log_softmax"


# ---------------------------------------------------------------- matrix products


class Matmul(Operation):
    """a @ b with NumPy's rules: vectors, matrices, and stacks of matrices that broadcast."""

    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        return run("matmul", a, b)

    def backward(self, grad: Array) -> Gradients:
        a, b = self.saved
        # treat vectors as one-row and one-column matrices
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        if a.ndim == 1:
            grad = grad[..., None, :] if b.ndim > 1 else grad[..., None]
        if b.ndim == 1:
            grad = grad[..., None]
        grad_a = grad_b = None
        if self.wants(0):
            grad_a = run("matmul", grad, columns.swapaxes(-1, -2))
            grad_a = sum_to_shape(grad_a, rows.shape).reshape(a.shape)
        if self.wants(1):
            grad_b = run("matmul", rows.swapaxes(-1, -2), grad)
            grad_b = sum_to_shape(grad_b, columns.shape).reshape(b.shape)
        return grad_a, grad_b


class Linear(Operation):
    """x @ weight + bias, where x (..., in) is seen as one tall matrix, and then an activation."""

    def __init__(self, activation: str | None = None) -> None:
        self.activation = activation

    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        given = (x, weight) if bias is None else (x, weight, bias)
        if self.activation is None or not self.tracked:
            self.saved = x, weight, None, None
            settings = {} if self.activation is None else {"activation": self.activation}
            return run("linear", *given, **settings)
        product = run("linear", *given)  # which the derivative of the activation needs
        kind, options = ACTIVATION_KINDS[self.activation]
        output = run(kind, product, **options)
        self.saved = x, weight, product, output
        return output

    def backward(self, grad: Array) -> Gradients:
        x, weight, product, output = self.saved
        if self.activation is not None:
            kind, options = ACTIVATION_KINDS[self.activation]
            known = product if kind == "gelu" else output
            grad = run(f"{kind}_backward", grad, known, **options)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if self.wants(0):
            grad_x = run("matmul", rows, weight.T).reshape(x.shape)
        if self.wants(1):
            grad_weight = run("matmul", x.reshape(-1, x.shape[-1]).T, rows)
        if self.wants(2):
            grad_bias = run("sum", rows, axis=0)
        return (grad_x, grad_weight, grad_bias)[: len(self.inputs)]


# An activation that may follow a product -> its kernel and that kernel's settings.
ACTIVATION_KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "relu": ("relu", {}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "gelu": ("gelu", {"approximate": "none"}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
}


class Attention(Operation):
    """softmax(query key^T scale + bias) value, with a causal mask on request."""

    def __init__(self, bias: Array | None, scale: float, causal: bool) -> None:
        self.bias = bias
        self.scale = scale
        self.causal = causal

    def forward(self, query: Array, key: Array, value: Array) -> Array:
        mix, weights = run(
            "attention",
            query,
            key,
            value,
            self.bias,
            scale=self.scale,
            causal=self.causal,
            keep_weights=self.tracked,
        )
        self.saved = query, key, value, weights
        return mix

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run(
            "attention_backward", grad, *self.saved, scale=self.scale, causal=self.causal
        )
        pairs = zip(gradients, self.inputs, strict=True)
        return tuple(sum_to_shape(slope, tensor.shape) for slope, tensor in pairs)  # type: ignore[arg-type]


# ---------------------------------------------------------------- sums, means and maxima over axes

Axes = int | tuple[int, ...] | None


class _Reduction(Operation):
    def __init__(self, axis: Axes, keepdims: bool) -> None:
        self.axis = axis
        self.keepdims = keepdims

    def axes(self) -> tuple[int, ...]:
        """Return the reduced axes as non-negative numbers."""
        rank = len(self.inputs[0].shape)
        if self.axis is None or rank == 0:  # NumPy allows axis -1 of a scalar
            return tuple(range(rank))
        axes = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return tuple(axis % rank for axis in axes)

    def spread(self, reduced: Array) -> Array:
        """Repeat a reduced array over the axes that are gone. Returns a view."""
        shape = self.inputs[0].shape
        axes = self.axes()
        kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
        return run("broadcast_to", reduced.reshape(kept), shape=shape)


class Sum(_Reduction):
    def forward(self, x: Array) -> Array:
        return run("sum", x, axis=self.axis, keepdims=self.keepdims)

    def backward(self, grad: Array) -> Gradients:
        return (self.spread(grad),)


class Mean(_Reduction):
    def forward(self, x: Array) -> Array:
        return run("mean", x, axis=self.axis, keepdims=self.keepdims)

    def backward(self, grad: Array) -> Gradients:
        count = math.prod(self.inputs[0].shape[axis] for axis in self.axes())
        return (self.spread(run("divide", grad, grad.dtype.type(count))),)


class Max(_Reduction):
    """The largest element; elements that share the maximum share its gradient."""

    def forward(self, x: Array) -> Array:
        result = run("max", x, axis=self.axis, keepdims=self.keepdims)
        self.saved = x, result
        return result

    def backward(self, grad: Array) -> Gradients:
        x, result = self.saved
        is_largest = run("equal", x, self.spread(result)).astype(grad.dtype)
        count = run("sum", is_largest, axis=self.axes(), keepdims=True)
        share = run("divide", grad.reshape(count.shape), count)
        return (run("multiply", is_largest, share),)


# ---------------------------------------------------------------- operations that move elements:
# shapes, axes, indices, look-ups


class Reshape(Operation):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return run("reshape", x, shape=self.shape)

    def backward(self, grad: Array) -> Gradients:
        return (run("reshape", grad, shape=self.inputs[0].shape),)


class Transpose(Operation):
    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes

    def forward(self, x: Array) -> Array:
        return run("transpose", x, axes=self.axes)

    def backward(self, grad: Array) -> Gradients:
        inverse = tuple(int(axis) for axis in np.argsort([axis % grad.ndim for axis in self.axes]))
        return (run("transpose", grad, axes=inverse),)


class BroadcastTo(Operation):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return run("broadcast_to", x, shape=self.shape)

    def backward(self, grad: Array) -> Gradients:
        return (sum_to_shape(grad, self.inputs[0].shape),)


class GetItem(Operation):
    def __init__(self, index: Any) -> None:
        self.index = index

    def forward(self, x: Array) -> Array:
        return run("getitem", x, index=self.index)

    def backward(self, grad: Array) -> Gradients:
        shape = self.inputs[0].shape
        return (run("getitem_backward", grad, shape=shape, index=self.index),)


class Concatenate(Operation):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, *arrays: Array) -> Array:
        return run("concatenate", arrays, axis=self.axis)

    def backward(self, grad: Array) -> Gradients:
        lengths = [tensor.shape[self.axis] for tensor in self.inputs]
        return tuple(np.split(grad, list(accumulate(lengths))[:-1], axis=self.axis))


class Rotary(Operation):
    """Rotate pairs of elements (..., time, d) by angles, whose cosines and sines are given."""

    def __init__(self, cosines: Array, sines: Array) -> None:
        self.cosines = cosines
        self.sines = sines

    def forward(self, x: Array) -> Array:
        return run("rotary", x, self.cosines, self.sines)

    def backward(self, grad: Array) -> Gradients:
        return (run("rotary", grad, self.cosines, -self.sines),)


class Embedding(Operation):
    """Rows of a table, by integer ids."""

    def __init__(self, ids: Array) -> None:
        self.ids = ids

    def forward(self, weight: Array) -> Array:
        return run("embedding", weight, self.ids)

    def backward(self, grad: Array) -> Gradients:
        return (run("embedding_backward", grad, self.ids, count=self.inputs[0].shape[0]),)


# ---------------------------------------------------------------- layer and batch normalisation
# with the statistics of the data at hand


class LayerNorm(Operation):
    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        output, mean, inverse = run("layer_norm", x, weight, bias, eps=self.eps)
        self.saved = x, weight, mean, inverse
        return output

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run("layer_norm_backward", grad, *self.saved)
        return gradients


class RMSNorm(Operation):
    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Array, weight: Array) -> Array:
        output, inverse = run("rms_norm", x, weight, eps=self.eps)
        self.saved = x, weight, inverse
        return output

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run("rms_norm_backward", grad, *self.saved)
        return gradients


class BatchNorm(Operation):
    """Normalise each channel; afterwards `mean` and `variance` hold the batch's statistics."""

    mean: Array
    variance: Array

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        output, normalised, inverse, self.mean, self.variance = run(
            "batch_norm", x, weight, bias, eps=self.eps
        )
        self.saved = weight, normalised, inverse
        return output

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run("batch_norm_backward", grad, *self.saved)
        return gradients


# ---------------------------------------------------------------- losses that give one value per
# example or element; the mean is taken by the caller


class CrossEntropy(Operation):
    """Cross entropy of logits (rows, classes) against class numbers (rows,)."""

    def __init__(self, targets: Array) -> None:
        self.targets = targets

    def forward(self, logits: Array) -> Array:
        losses, self.saved = run("cross_entropy", logits, self.targets)
        return losses

    def backward(self, grad: Array) -> Gradients:
        return (run("cross_entropy_backward", grad, self.saved, self.targets),)


class BinaryCrossEntropy(Operation):
    """Cross entropy of probabilities against targets in [0, 1], element by element."""

    kind: ClassVar[str] = "binary_cross_entropy"

    def __init__(self, targets: Array) -> None:
        self.targets = targets

    def forward(self, predictions: Array) -> Array:
        self.saved = predictions
        return run(self.kind, predictions, self.targets)

    def backward(self, grad: Array) -> Gradients:
        return (run(f"{self.kind}_backward", grad, self.saved, self.targets),)


class BinaryCrossEntropyWithLogits(BinaryCrossEntropy):
    """The same on logits, exact for logits of any size."""

    kind: ClassVar[str] = "binary_cross_entropy_with_logits"


# ---------------------------------------------------------------- convolution and pooling over
# images (batch, channels, height, width)


class Conv2d(Operation):
    def __init__(self, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> None:
        self.settings: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }

    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        self.saved = x, weight
        return run("conv2d", x, weight, bias, **self.settings)

    def backward(self, grad: Array) -> Gradients:
        x, weight = self.saved
        grad_x = grad_weight = grad_bias = None
        if self.wants(0):
            grad_x = run(
                "conv2d_backward_input", grad, weight, input_shape=x.shape, **self.settings
            )
        if self.wants(1):
            grad_weight = run(
                "conv2d_backward_weight", grad, x, weight_shape=weight.shape, **self.settings
            )
        if self.wants(2):
            grad_bias = run("sum", grad, axis=(0, 2, 3))
        return (grad_x, grad_weight, grad_bias)[: len(self.inputs)]


class MaxPool2d(Operation):
    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        self.settings = {"kernel": kernel, "stride": stride, "padding": padding}

    def forward(self, x: Array) -> Array:
        output = run("max_pool2d", x, **self.settings)
        self.saved = x, output
        return output

    def backward(self, grad: Array) -> Gradients:
        return (run("max_pool2d_backward", grad, *self.saved, **self.settings),)


class AvgPool2d(Operation):
    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        self.settings = {"kernel": kernel, "stride": stride, "padding": padding}

    def forward(self, x: Array) -> Array:
        return run("avg_pool2d", x, **self.settings)

    def backward(self, grad: Array) -> Gradients:
        shape = self.inputs[0].shape
        return (run("avg_pool2d_backward", grad, input_shape=shape, **self.settings),)

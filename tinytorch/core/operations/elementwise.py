"""Elementwise operations, with broadcasting where they take two inputs."""

from __future__ import annotations

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation, sum_to_shape


class Binary(Operation):
    """An operation on two arrays that broadcast: derivatives are summed back to each shape."""

    def derivative(self, position: int, grad: Array) -> Array:
        """Give the gradient of one input, in the broadcast shape."""
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

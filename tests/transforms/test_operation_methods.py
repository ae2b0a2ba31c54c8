import inspect

import pytest

from tinytorch.core.kernels import REFERENCE
from tinytorch.transforms.optimized_backend import with_a_method_for_each_operation


@with_a_method_for_each_operation
class Echo:
    def dispatch(self, op, *arguments, **settings):
        return op, arguments, settings


@pytest.mark.parametrize("kind", REFERENCE.kernels)
def test_every_operation_has_a_method_that_says_what_it_takes(kind):
    method = getattr(Echo, kind)
    assert method.__name__ in dir(Echo)
    assert kind in method.__doc__
    names = list(inspect.signature(method).parameters)
    assert names[0] == "self"
    assert len(names) > 1


def test_a_method_dispatches():
    assert Echo().softmax(1, axis=0) == ("softmax", (1,), {"axis": 0})


def test_signatures_show_the_usual_settings():
    assert str(inspect.signature(Echo.gelu)) == "(self, x, *, approximate='tanh')"
    assert str(inspect.signature(Echo.equal)) == "(self, a, b)"
    assert str(inspect.signature(Echo.sign)) == "(self, x)"


def test_the_docstring_tells_where_gradients_end():
    assert Echo.gelu.__doc__.endswith("with gradients.")
    assert Echo.adam_step.__doc__.endswith("without gradients.")


def test_a_method_of_the_class_is_not_hidden():
    with pytest.raises(AssertionError, match="the operation exp hides a method of Clash"):

        @with_a_method_for_each_operation
        class Clash:
            def exp(self):
                return None

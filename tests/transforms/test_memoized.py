"""Memoized functions: computed once per content, and nobody can spoil what is kept."""

import copy
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import GraphError, SettingError
from tinytorch.transforms.memoize import memoize


def counted(function, **settings):
    """Give a memoized function, and the list of its real calls."""
    calls = []

    def inner(*args, **kwargs):
        calls.append((args, kwargs))
        return function(*args, **kwargs)

    return memoize(**settings)(inner), calls


def test_equal_content_is_computed_once(rng):
    double, calls = counted(lambda x: 2 * x)
    x = rng.standard_normal((3, 4))
    for same in (x, x.copy(), np.asfortranarray(x), x[::-1][::-1]):
        np.testing.assert_array_equal(double(same), 2 * x)
    assert len(calls) == 1
    info = double.cache_info()
    assert (info.hits, info.misses, info.maxsize, info.currsize) == (3, 1, 128, 1)
    assert info.held_bytes == x.nbytes


DIFFERENT = [
    np.zeros(4),
    np.zeros(4, np.float32),
    np.zeros((2, 2)),
    np.zeros((4, 0)),
    np.zeros((0, 4)),
    -np.zeros(4),
    Tensor(np.zeros(4)),
    Tensor(np.zeros(4), requires_grad=True),
    np.float64(0),
    np.array(0.0),
    0,
    0.0,
    -0.0,
    False,
    None,
    "",
    b"",
    (),
    [],
    {},
    set(),
    (0,),
    [0],
    ((0,),),
    {"a": 0},
    {"b": 0},
    {0},
    float("nan"),
    complex(0),
]


def test_different_content_is_never_taken_for_the_same():
    number, calls = counted(lambda x: len(calls), maxsize=None)
    for value in DIFFERENT:
        number(value)
    assert len(calls) == len(DIFFERENT)
    for position, value in enumerate(DIFFERENT, 1):
        assert number(copy.deepcopy(value)) == position
    assert len(calls) == len(DIFFERENT)


@given(st.lists(st.integers(-2, 2), max_size=5), st.lists(st.integers(-2, 2), max_size=5))
def test_a_result_is_that_of_its_own_argument(first, second):
    total = memoize(lambda values: values.sum() * 2)
    for values in (first, second, first):
        assert total(np.array(values, int)) == 2 * sum(values)
    assert total.cache_info().misses == 1 + (first != second)


def test_names_count_and_their_order_does_not():
    power, calls = counted(lambda base, exponent: base**exponent)
    assert power(base=2, exponent=3) == power(exponent=3, base=2) == 8
    assert power(base=3, exponent=2) == 9
    assert len(calls) == 2


def test_what_a_caller_does_to_a_result_spoils_nothing():
    parts = memoize(lambda x: {"parts": [x + 1, Tensor(x)], "whole": x})
    x = np.arange(3.0)
    for _ in range(3):
        found = parts(np.arange(3.0))
        np.testing.assert_array_equal(found["parts"][0], [1, 2, 3])
        np.testing.assert_array_equal(found["parts"][1].data, x)
        np.testing.assert_array_equal(found["whole"], x)
        found["parts"][0][:] = 99
        found["parts"][1].data[:] = 99
        found["whole"][:] = 99  # the argument itself, on the first call
        found["parts"].clear()


def test_an_argument_that_changes_is_computed_again():
    total, calls = counted(lambda x: x.sum())
    x = np.ones(3)
    assert total(x) == 3
    x[0] = 5
    assert total(x) == 7
    assert len(calls) == 2


def test_the_results_that_were_not_used_for_longest_go_first():
    same, calls = counted(lambda x: x, maxsize=2)
    for value in (1, 2, 1, 3, 1):  # 3 takes the place of 2
        same(value)
    assert len(calls) == 3
    same(2)
    assert len(calls) == 4
    assert same.cache_info().currsize == 2


def test_clearing_forgets_everything():
    same, calls = counted(lambda x: x)
    same(1)
    same.cache_clear()
    assert same.cache_info().misses == same.cache_info().currsize == 0
    same(1)
    assert len(calls) == 2


def test_an_error_is_not_kept():
    attempts = []

    @memoize
    def fragile(x):
        attempts.append(x)
        if len(attempts) == 1:
            raise KeyError("once")
        return x

    with pytest.raises(KeyError, match="once"):
        fragile(1)
    assert fragile(1) == 1
    assert fragile.cache_info().currsize == 1


def test_none_is_a_result():
    nothing, calls = counted(lambda x: None)
    assert nothing(1) is None
    assert nothing(1) is None
    assert len(calls) == 1


def test_many_threads_get_right_results():
    square = memoize(maxsize=5)(lambda x: x * x)
    wrong = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for value in draw.integers(0, 12, 300):
            array = np.full(3, value)
            found = square(array)
            if not (found == value * value).all():
                wrong.append(value)
            found[:] = -1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    info = square.cache_info()
    assert wrong == []
    assert info.hits + info.misses == 6 * 300
    assert info.currsize == 5


def test_it_looks_like_the_function():
    @memoize(maxsize=None)
    def halve(x):
        """Give half of it."""
        return x / 2

    assert (halve.__name__, halve.__doc__) == ("halve", "Give half of it.")
    assert copy.deepcopy(halve) is halve
    assert halve.__wrapped__(3) == 1.5


def test_a_method_counts_the_object_it_belongs_to():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @memoize
        def times(self, x):
            return self.factor * x

    two, three = Scale(2), Scale(3)
    assert [two.times(5), three.times(5), two.times(5)] == [10, 15, 10]
    assert Scale.times.cache_info().hits == two.times.cache_info().hits == 1


# ---------------------------------------------------------------- bad input


def test_a_result_with_a_graph_is_an_error():
    layer = Linear(2, 2, rng=0)
    run = memoize(lambda x: layer(x))
    x = Tensor(np.ones((1, 2), np.float32))
    with pytest.raises(GraphError, match=r"a tensor with a graph.*compute under no_grad\(\)"):
        run(x)
    with no_grad():
        first, second = run(x), run(x)
    np.testing.assert_array_equal(first.data, second.data)
    assert first.data is not second.data


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (Linear(2, 2), "got a Linear, whose weights may change unseen"),
        (bytearray(2), "got a bytearray, which is neither an array nor hashable"),
        ([bytearray(2)], "got a bytearray"),
        (np.array([None]), "got an array of objects"),
    ],
)
def test_an_argument_without_a_content_is_an_error(argument, message):
    with pytest.raises(SettingError, match=message):
        memoize(id)(argument)


def test_a_bad_setting_is_an_error():
    with pytest.raises(SettingError, match="maxsize must be at least 1, or None for no limit"):
        memoize(maxsize=0)
    with pytest.raises(SettingError, match="memoize takes a function, got 3"):
        memoize(3)

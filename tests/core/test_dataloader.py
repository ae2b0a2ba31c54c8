"""Data sets and batches: every example once, in an order that a seed gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError


def numbered(count):
    """Give a data set whose inputs and targets tell the number of the example."""
    numbers = np.arange(count)
    return TensorDataset(Tensor(np.stack([numbers, -numbers], axis=1) * 1.0), Tensor(numbers))


class Squares:
    """A data set without tensors: examples are made when they are asked for."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        assert isinstance(index, int)
        return np.full((2, 2), index, np.float32), index**2, Tensor([float(index)])


def order_of(loader):
    return [number for _, targets in loader for number in targets.data.tolist()]


@given(st.integers(0, 30), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_example_comes_once_in_batches_of_the_size(count, size, shuffle, drop_last):
    loader = DataLoader(numbered(count), size, shuffle, seed=3, drop_last=drop_last)
    batches = list(loader)
    assert len(batches) == len(loader)
    lengths = [len(targets) for _, targets in batches]
    assert all(length == size for length in lengths[:-1])
    found = [number for _, targets in batches for number in targets.data.tolist()]
    assert len(set(found)) == len(found)
    if drop_last:
        assert all(length == size for length in lengths)
        assert len(found) == count - count % size
    else:
        assert sorted(found) == list(range(count))
    for inputs, targets in batches:  # rows stay together
        np.testing.assert_array_equal(inputs.data[:, 0], targets.data)


def test_without_shuffling_the_order_is_that_of_the_data():
    loader = DataLoader(numbered(10), batch_size=3)
    assert order_of(loader) == order_of(loader) == list(range(10))


def test_one_seed_gives_one_order_per_epoch_and_another_seed_another():
    first, again, other = (
        DataLoader(numbered(50), 8, shuffle=True, seed=seed) for seed in (1, 1, 2)
    )
    epochs = [order_of(first) for _ in range(3)]
    assert epochs == [order_of(again) for _ in range(3)]
    assert len({tuple(order) for order in epochs}) == 3
    assert order_of(other) != epochs[0]


def test_an_epoch_can_be_gone_to():
    loader = DataLoader(numbered(50), 8, shuffle=True, seed=1)
    epochs = [order_of(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert [order_of(loader) for _ in range(2)] == epochs[1:]


def test_an_epoch_that_is_left_early_counts():
    loader, twin = (DataLoader(numbered(50), 8, shuffle=True, seed=1) for _ in range(2))
    next(iter(loader))
    order_of(twin)
    assert order_of(loader) == order_of(twin)


def test_without_a_seed_orders_differ_between_loaders():
    first, second = (DataLoader(numbered(100), shuffle=True) for _ in range(2))
    assert order_of(first) != order_of(second)


def test_the_order_depends_on_no_global_state():
    loader = DataLoader(numbered(30), shuffle=True, seed=5)
    wanted = order_of(loader)
    np.random.seed(0)  # noqa: NPY002  somebody else uses the global generator
    loader.set_epoch(0)
    assert order_of(loader) == wanted


def test_any_data_set_with_a_length_and_examples_will_do():
    loader = DataLoader(Squares(), batch_size=3)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [3, 3, 3]
    inputs, squares, tensors = batches[1]
    assert inputs.shape == (3, 2, 2)
    assert inputs.dtype == np.float32
    assert squares.data.tolist() == [9, 16, 25]
    assert squares.dtype.kind == "i"
    assert tensors.shape == (3, 1)
    assert batches[-1][0].shape == (1, 2, 2)


def test_shuffled_data_sets_without_tensors_give_every_example_once():
    loader = DataLoader(Squares(), batch_size=2, shuffle=True, seed=0)
    assert sorted(n for _, squares, _ in loader for n in squares.data) == [0, 1, 4, 9, 16, 25, 36]


def test_a_data_set_takes_lists_arrays_and_tensors():
    dataset = TensorDataset([[1.0], [2.0]], np.array([3, 4]), Tensor([5.0, 6.0]))
    assert len(dataset) == 2
    assert [part.data.tolist() for part in dataset[1]] == [[2.0], 4, 6.0]


def test_batches_do_not_share_memory_with_the_data():
    dataset = numbered(4)
    (inputs, _), *_ = DataLoader(dataset, batch_size=2)
    inputs.data[:] = 100
    assert dataset.tensors[0].data.max() == 3


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_an_example(size):
    with pytest.raises(SettingError, match=f"batch_size must be at least 1, got {size}"):
        DataLoader(numbered(3), batch_size=size)


def test_a_negative_seed_is_an_error():
    with pytest.raises(SettingError, match="seed must be at least 0, got -1"):
        DataLoader(numbered(3), shuffle=True, seed=-1)


@pytest.mark.parametrize("shapes", [[(3,), (2,)], [(3, 2), (2, 3), (3,)], [()], [(3,), ()]])
def test_tensors_without_a_common_length_are_an_error_that_shows_them(shapes):
    with pytest.raises(ShapeError) as caught:
        TensorDataset(*(np.zeros(shape) for shape in shapes))
    assert str(caught.value) == (
        f"tensors of a data set need one common length, got shapes {shapes}"
    )


def test_a_data_set_needs_a_tensor():
    with pytest.raises(SettingError, match="needs at least one tensor, got none"):
        TensorDataset()


@pytest.mark.parametrize(
    "examples", [[([1.0],), ([1.0, 2.0],)], [(1.0, 2.0), (1.0,)], [([[1.0], [2.0, 3.0]],)]]
)
def test_examples_that_differ_are_an_error_that_numbers_them(examples):
    loader = DataLoader(examples, batch_size=2)
    with pytest.raises(ShapeError, match=r"examples \[0(, 1)?\] do not make a batch"):
        list(loader)


def test_floats_of_python_become_float32_and_integers_stay_integers():
    examples = [([0.1, 0.2], 1), ([0.3, 0.4], 0)]
    ((inputs, labels),) = DataLoader(examples, batch_size=2)
    assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)


def test_an_example_is_a_tuple():
    with pytest.raises(ShapeError, match="an example must be a tuple"):
        next(iter(DataLoader([np.zeros(3), np.ones(3)], batch_size=2)))

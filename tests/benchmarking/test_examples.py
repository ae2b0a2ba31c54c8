import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor
from tinytorch.benchmarking.examples import EVALUATION_BATCH, read_examples
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.errors import SettingError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])


class Items:
    """A data set by number, which cannot be iterated over."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


def pieces(examples):
    """Give all inputs and targets in one piece each."""
    arrays = [np.asarray(getattr(b.inputs[0], "data", b.inputs[0])) for b in examples.batches]
    return np.concatenate(arrays), np.concatenate([b.targets for b in examples.batches])


FORMS = {
    "a pair of arrays": lambda: (X, Y),
    "a pair of tensors": lambda: (Tensor(X), Tensor(Y)),
    "a pair of lists": lambda: (X.tolist(), Y.tolist()),
    "a list of two arrays": lambda: [X, Y],
    "a list of images": lambda: (list(X), list(Y)),
    "a dictionary": lambda: {"inputs": X, "targets": Y},
    "a data set": lambda: TensorDataset(X, Y),
    "a loader": lambda: DataLoader(TensorDataset(X, Y), 4),
    "batches": lambda: [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "a tuple of batches": lambda: ((X[:3], Y[:3]), (X[3:], Y[3:])),
    "batches as dictionaries": lambda: [{"inputs": X[:3], "targets": Y[:3]}] * 2,
    "single examples": lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "a generator": lambda: ((X[i : i + 2], Y[i : i + 2]) for i in (0, 2, 4)),
    "items by number": Items,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_examples(form):
    examples = read_examples(FORMS[form]())
    inputs, targets = pieces(examples)
    wanted = (np.tile(X[:3], (2, 1)), np.tile(Y[:3], 2)) if "dictionaries" in form else (X, Y)
    assert examples.has_targets
    assert np.array_equal(inputs, wanted[0])
    assert np.array_equal(targets, wanted[1])


def test_forms_of_pytorch_are_read():
    torch = require_part("torch")
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    for form in (dataset, torch.utils.data.DataLoader(dataset, 4), dataset.tensors):
        inputs, targets = pieces(read_examples(form))
        assert np.array_equal(inputs, X)
        assert np.array_equal(targets, Y)
    assert pieces(read_examples((torch.ones(2, 2), torch.ones(2).bfloat16())))[1].tolist() == [1, 1]


@pytest.mark.parametrize("form", [X, Tensor(X), X.tolist(), {"inputs": X}, TensorDataset(X)])
def test_inputs_alone_have_no_targets_and_stay_whole(form):
    examples = read_examples(form)
    assert not examples.has_targets
    assert np.array_equal(pieces_of_inputs(examples), X)
    assert len(examples.batches) == 1


def pieces_of_inputs(examples):
    value = examples.timed_inputs()[0]
    return np.asarray(value.data if isinstance(value, Tensor) else value)


def test_several_inputs_come_as_a_tuple():
    examples = read_examples(((X, -X), Y))
    assert [value.shape for value in examples.timed_inputs()] == [(6, 4), (6, 4)]
    assert [len(b.inputs) for b in read_examples(TensorDataset(X, -X, Y)).batches] == [2]


def test_whole_arrays_are_cut_and_timed_in_small_batches():
    count = 2 * EVALUATION_BATCH + 3
    examples = read_examples((np.zeros((count, 2)), np.zeros(count, int)))
    assert [batch.size for batch in examples.batches] == [EVALUATION_BATCH] * 2 + [3]
    assert examples.timed_inputs()[0].shape == (32, 2)
    assert examples.timed_inputs(1)[0].shape == (1, 2)


def test_a_loader_is_timed_by_its_own_batches_and_keeps_its_order():
    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True, seed=1)
    wanted = [batch[1].data.tolist() for batch in loader]
    loader.set_epoch(0)
    examples = read_examples(loader)
    assert examples.timed_inputs()[0].shape == (4, 4)
    assert [batch.targets.tolist() for batch in examples.batches] == wanted
    assert loader.epoch == 0, "the loader goes on as if nobody had looked"
    assert read_examples(examples) is examples


def test_python_floats_become_float32_and_arrays_keep_their_dtype():
    assert read_examples(([[1.0]], [0])).batches[0].inputs[0].dtype == np.float32
    assert read_examples((np.ones((1, 1)), [0])).batches[0].inputs[0].dtype == np.float64


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ([], "no example"),
        ((np.zeros((0, 3)), np.zeros(0, int)), "no example"),
        ((X, Y[:5]), "differ in the number of examples"),
        ([(X, Y[:5])], "differ in the number of examples"),
        ({"x": X}, 'needs "inputs"'),
        ({}, "has nothing"),
        ((X, ["a"] * 6), "cannot be scored"),
        ("digits", "is a text"),
        (7, "holds no examples"),
        ([(X, Y), (X,)], "all or none"),
        ([()], "an empty batch"),
        ([object()], "a batch is a object"),
        ([(X[0], 1), (X[0, :2], 0)], "differ in shape"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "makes no array"),
        (([object()], [0]), "makes no array"),
    ],
)
def test_what_holds_no_examples_is_refused(form, message):
    with pytest.raises(SettingError, match=message):
        read_examples(form)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(SettingError, match="the first batch has 6"):
        read_examples((X, Y)).timed_inputs(7)

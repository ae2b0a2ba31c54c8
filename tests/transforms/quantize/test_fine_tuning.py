from dataclasses import replace

import numpy as np
import pytest

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.optimizers import SGD, Adam
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.fine_tuning import fine_tune
from tinytorch.transforms.quantize.layers import QuantizedLinear


def spirals(seed):
    """Three classes that wind around each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 600)
    radius = rng.uniform(0.1, 1, 600)
    angle = 4 * radius + labels * 2 * np.pi / 3
    points = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)
    wide = np.concatenate([points, points[:, :1] * points[:, 1:], points**2, radius[:, None]], 1)
    padded = np.concatenate([wide, np.zeros((600, 2))], axis=1)  # eight inputs: one INT4 group
    return padded.astype(np.float32), labels


@pytest.fixture(scope="module")
def trained():
    x, y = spirals(0)
    model = Sequential(Linear(8, 32, rng=0), ReLU(), Linear(32, 3, rng=1))
    loader = DataLoader(TensorDataset(Tensor(x), y), batch_size=50, shuffle=True, seed=0)
    model.fit(loader, optimizer=Adam(model.parameters(), lr=0.02), epochs=20)
    batches = tuple((Tensor(part),) for part in np.split(x[:120], 4))
    return Workload("spirals", model.eval(), (Tensor(x[:1]),), calibration=batches), loader


def accuracy(model):
    x, y = spirals(1)
    return np.mean(model(Tensor(x)).data.argmax(axis=1) == y)


def test_training_with_the_rounding_wins_back_what_rounding_lost(trained):
    work, loader = trained
    # ranges so narrow that most of the inputs are cut off
    narrow = tuple((Tensor(0.3 * x.data),) for (x,) in work.calibration)
    work = replace(work, calibration=narrow)
    transform = Quantize("static", ranges="minmax")
    plain = transform.apply(work, transform.plan(work))
    tuned = fine_tune(work, loader, transform, epochs=3, optimizer=lambda each: Adam(each, lr=0.01))
    assert accuracy(work.model) > 0.95
    assert accuracy(plain) < 0.8
    assert accuracy(tuned) > 0.95
    assert isinstance(tuned.layers[0], QuantizedLinear)
    np.testing.assert_array_equal(tuned.layers[0].input_step.data, plain.layers[0].input_step.data)


def test_weights_move_and_the_float_model_stays_as_it_was(trained):
    work, loader = trained
    before = {name: array.copy() for name, array in work.model.state_dict().items()}
    tuned = fine_tune(work, loader, epochs=1, optimizer=lambda parameters: SGD(parameters, lr=0.01))
    assert tuned.layers[0].mode == "static"
    for name, array in work.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    trained_weight = tuned.layers[0].weight.data
    assert np.abs(trained_weight - before["layers.0.weight"]).max() > 0


def test_nothing_to_train_for_says_so(trained):
    work, loader = trained
    with pytest.raises(SettingError, match="quantizes no linear layer and no convolution"):
        fine_tune(work, loader, Quantize(keep=("*",)))


def test_a_plain_function_cannot_be_trained():
    work = Workload("function", lambda x: x, (Tensor([1.0]),))
    with pytest.raises(SettingError, match="fine-tuning trains modules of tinytorch"):
        fine_tune(work, [])


def test_an_optimizer_that_is_made_already_is_refused(trained):
    work, loader = trained
    with pytest.raises(SettingError, match="the optimizer is a function of the parameters"):
        fine_tune(work, loader, optimizer=Adam(work.model.parameters()))
    with pytest.raises(SettingError, match="goes over the data several times"):
        fine_tune(work, (batch for batch in loader))

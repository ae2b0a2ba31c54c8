import numpy as np
import pytest
from oracles import unigram_entropy
from parts import require_part

from tinytorch.core.checkpoints import read_arrays
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.optimizers import AdamW
from tinytorch.core.training import CosineSchedule, Trainer
from tinytorch.models import train, zoo
from tinytorch.models.zoo import load_corpus, split_corpus


@pytest.mark.slow
@pytest.mark.parametrize("name", train.RECIPES)
def test_the_same_seed_gives_the_same_weights_bit_for_bit(name):
    first, _ = train.train_model(name, seed=3, steps=4)
    second, _ = train.train_model(name, seed=3, steps=4)
    other, _ = train.train_model(name, seed=4, steps=4)
    states = [model.state_dict() for model in (first, second, other)]
    assert all(np.array_equal(array, states[1][key]) for key, array in states[0].items())
    assert not all(np.array_equal(array, states[2][key]) for key, array in states[0].items())


@pytest.mark.slow
def test_the_recipe_teaches_the_mlp():
    model, history = train.train_model("mlp", seed=0)
    scores = zoo.is_correct(model, zoo.digit_data(held_out=True, flat=True))
    assert scores.mean() >= 0.96
    assert history.values("loss")[-1] < history.values("loss")[0]


@pytest.mark.slow
def test_the_recipe_teaches_the_cnn():
    model, _ = train.train_model("cnn", seed=0)
    scores = zoo.is_correct(model, zoo.digit_data(held_out=True, flat=False))
    assert scores.mean() >= 0.98


@pytest.mark.slow
def test_a_short_run_teaches_gpt_more_than_single_characters():
    model, _ = train.train_model("gpt", seed=0, steps=300)
    windows = TensorDataset(*zoo.text_data(held_out=True)[:200])
    loss = -zoo.log_likelihood(model, windows).mean()
    # 300 steps of 3,000 reach about 1.9 nats; single characters stay at 3.05
    assert loss < 0.75 * unigram_entropy(split_corpus(load_corpus())[1])


@pytest.mark.parametrize(
    ("name", "least"), [("mlp", 0.96), pytest.param("cnn", 0.98, marks=pytest.mark.slow)]
)
def test_the_same_code_reads_real_digits(name, least):
    """Train the zoo's networks on scikit-learn's scanned 8x8 digits, a fifth held out."""
    digits = require_part("sklearn.datasets").load_digits()
    split = require_part("sklearn.model_selection").train_test_split
    images = ((digits.images - 4.9) / 6.0).astype(np.float32)  # mean and deviation of the pixels
    images = images.reshape(-1, 64) if name == "mlp" else images[:, None]
    x, x_test, y, y_test = split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    build = zoo.build_mlp if name == "mlp" else zoo.build_cnn
    model = build(0, side=8)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, seed=0)
    epochs = 30
    Trainer(
        model,
        optimizer=AdamW(model.parameters()),
        schedule=CosineSchedule(3e-3, epochs * len(loader), warmup=20),
    ).fit(loader, epochs=epochs)
    assert zoo.is_correct(model.eval(), TensorDataset(x_test, y_test)).mean() >= least


def test_the_command_writes_weights_with_their_score(tmp_path, monkeypatch, capsys):
    small = TensorDataset(*zoo.digit_data(held_out=False, flat=True)[:640])
    recipe = train.RECIPES["mlp"]
    few = train.Recipe(**{**vars(recipe), "epochs": 1, "load_data": lambda held_out: small})
    monkeypatch.setitem(train.RECIPES, "mlp", few)
    assert train.main(["mlp", "--seed", "5", "--output", str(tmp_path)]) == 0
    arrays, metadata = read_arrays(tmp_path / "mlp.safetensors")
    assert arrays["layers.0.weight"].shape == (784, 128)
    assert metadata["command"] == "python -m tinytorch.models.train mlp --seed 5"
    assert metadata["held_out_examples"] == 640
    assert f"{metadata['held_out_score']:.4f}" in capsys.readouterr().out


def test_the_command_refuses_an_unknown_model(capsys):
    with pytest.raises(SystemExit):
        train.main(["resnet"])
    assert "no model 'resnet'; there are mlp, cnn, gpt" in capsys.readouterr().err

from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("transformers")

from tiny_transformers import tiny

from tinytorch.transforms.support.weights_torch import CONFIG_LACKS, fit_config, has_config


def test_models_of_transformers_have_a_config():
    assert has_config(tiny("gpt2").model)
    assert not has_config(nn.Linear(2, 2))


def test_a_config_that_can_say_the_sizes_does():
    model = tiny("llama").model
    del model.model.layers[2]
    note = fit_config(model, {"num_hidden_layers": 1}, {"num_hidden_layers": 2})
    assert note.startswith("its config says the new sizes (num_hidden_layers=2)")
    assert model.config.num_hidden_layers == 2


def test_one_that_cannot_stays_as_it_is():
    model = tiny("llama").model
    del model.model.layers[2].mlp.up_proj
    assert fit_config(model, {"num_hidden_layers": 2}) == CONFIG_LACKS
    assert model.config.num_hidden_layers == 3


def test_models_without_a_config_need_none():
    assert fit_config(nn.Linear(2, 2), {"num_hidden_layers": 1}) == ""


def test_nothing_to_change_is_nothing_to_say():
    assert fit_config(tiny("gpt2").model, {}) == ""

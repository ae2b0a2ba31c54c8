from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import gpt2, llama
from torch_workloads import Tied

from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.lower_precision.torch import (
    cast_modules,
    find_layers,
    kept_modules,
    made_constants,
)


def found(model, *, called=None, **settings):
    called = {path for path, _ in model.named_modules()} if called is None else called
    steps, skipped = find_layers(model, LowerPrecision(how="layers", **settings), called)
    return {each.layer: each.what for each in steps}, {each.layer: each.reason for each in skipped}


def test_constants_are_what_no_checkpoint_holds():
    assert made_constants(llama()) == (
        "model.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq",
    )
    assert made_constants(nn.BatchNorm1d(3)) == ()


def test_what_shares_a_weight_with_what_is_kept_is_kept():
    assert kept_modules(gpt2(), ("lm_head",)) == {
        "lm_head": "kept by keep='lm_head'",
        "transformer.wte": "it shares its weight with 'lm_head', which is kept by keep='lm_head'",
    }


def test_inputs_are_cast_for_the_outermost_module_that_is_called():
    model = nn.Sequential(nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())]))
    kept = kept_modules(model, ("0",))
    assert [*kept] == ["0.0.0"]
    assert cast_modules(model, ("0",), kept, {"0", "0.0", "0.0.0"}) == ("0",)
    assert cast_modules(model, ("0",), kept, {"0.0", "0.0.0"}) == ("0.0",)
    assert cast_modules(model, (), (), {"0.0.0"}) == ()


def test_linear_layers_are_chosen_and_the_others_have_reasons():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(
        nn.Linear(2, 2), nn.LayerNorm(2), Own(2, 2), nn.Linear(2, 2).half(), nn.Linear(2, 2)
    )
    model[4].forward = lambda x: x
    steps, reasons = found(model)
    assert [*steps] == ["0"]
    assert reasons == {
        "1": "LayerNorm is no linear layer or convolution",
        "2": "a Own is a Linear that may compute something else",
        "3": "it holds float16 already",
        "4": "its forward was replaced on this object by another function",
    }


def test_layers_that_are_not_called_or_kept_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    _, reasons = found(model, called={"1"}, keep=("1",))
    assert reasons["0"] == "it was not called: its weight may be used in another way"
    assert reasons["1"] == "kept by keep='1'"


def test_a_tied_table_joins_its_head():
    steps, reasons = found(Tied())
    assert steps["table"] == "holds bfloat16, which it shares with 'heads.0'; casts rows"
    assert "heads.0" in steps
    assert reasons == {}


def test_a_tied_head_stays_with_a_table_that_cannot_join():
    model = Tied(heads=2)
    for settings in ({"keep": ("table",)}, {"called": {"body", "heads.0", "heads.1"}}):
        steps, reasons = found(model, **settings)
        assert [*steps] == ["body"]
        assert reasons["heads.0"] == "it shares its weight with 'table', which is not converted"
        assert reasons["heads.1"].endswith("which is not converted")
    model.table.max_norm = 1.0
    assert [*found(model)[0]] == ["body"]


def test_a_weight_computed_at_each_call_stays():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    steps, reasons = found(model)
    assert steps == {}
    assert "0" in reasons

from dataclasses import replace

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, LayerNorm
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.kv_cache import enable_kv_cache
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.sparse_layers import SparseLinear


class Step(Module):
    """Adds a little to what comes in."""

    def __init__(self, width, size, seed):
        self.linear = Linear(width, width, rng=seed)
        self.linear.weight.data *= size
        self.linear.bias.data *= size

    def forward(self, x):
        return x + self.linear(x)


def stack(*sizes):
    """A residual network whose steps matter by these sizes."""
    steps = [Step(8, size, seed) for seed, size in enumerate(sizes)]
    model = Sequential(Linear(6, 8, rng=10), *steps, Linear(8, 3, rng=11))
    rng = np.random.default_rng(0)
    batches = [(Tensor(rng.normal(size=(5, 6)).astype(np.float32)),) for _ in range(3)]
    return Workload("stack", model.eval(), batches[0], calibration=tuple(batches))


def deep_gpt():
    work = workload("gpt")
    return replace(work, model=GPT(50, 32, 4, 4, max_seq_len=16, rng=0).eval())


def held(model):
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


def calibrated(model, work):
    batch = Tensor(np.concatenate([x.data for (x,) in work.calibration]))
    with no_grad():
        return model(batch).data


def change(model, work):
    expected = calibrated(work.model, work)
    return np.linalg.norm(calibrated(model, work) - expected) / np.linalg.norm(expected)


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def test_it_is_a_transform():
    assert isinstance(RemoveLayers(), Transform)


def test_the_layers_go_that_are_missed_least_one_after_the_other():
    work = stack(1.0, 0.01, 0.5, 0.1)
    plan = RemoveLayers(2).plan(work)
    assert plan.layers == ("layers.2", "layers.4")
    assert reasons(plan).keys() == {"layers.0", "layers.1", "layers.3", "layers.5"}
    assert "without it the outputs would change by" in reasons(plan)["layers.1"]
    assert reasons(plan)["layers.0"] == "it makes (5, 8) of (5, 6), so others need it"
    model = RemoveLayers(2).apply(work, plan)
    assert [type(each) for each in model.layers] == [Linear, Step, Step, Linear]


def test_the_changes_in_the_plan_are_those_of_the_models():
    work = stack(1.0, 0.01, 0.5, 0.1)
    plan = RemoveLayers(3).plan(work)
    for number, step in enumerate(plan.steps):
        part = replace(plan, steps=plan.steps[: number + 1])
        together = change(RemoveLayers(3).apply(work, part), work)
        alone = change(RemoveLayers(3).apply(work, replace(plan, steps=(step,))), work)
        assert step.settings["order"] == number
        assert step.settings["change_together"] == pytest.approx(together, rel=1e-5)
        assert step.settings["change_alone"] == pytest.approx(alone, rel=1e-5)
        assert f"{step.settings['change_alone']:.2%}" in step.why


def test_the_model_is_smaller_as_predicted_and_the_input_stays_as_it_was():
    for work in (stack(1.0, 0.1), deep_gpt()):
        before = {key: array.tobytes() for key, array in work.model.state_dict().items()}
        plan = RemoveLayers().plan(work)
        model = RemoveLayers().apply(work, plan)
        assert plan.shrinkage.value == held(work.model) / held(model) > 1
        assert {k: array.tobytes() for k, array in work.model.state_dict().items()} == before


def test_a_shallower_gpt_is_an_ordinary_one():
    work = deep_gpt()
    plan = RemoveLayers(2).plan(work)
    model = RemoveLayers(2).apply(work, plan)
    assert type(model) is GPT
    assert model.num_layers == 2
    assert work.model.num_layers == 4
    assert model.make_cache().num_layers == 2
    kept = [f"blocks.{n}" for n in range(4) if f"blocks.{n}" not in plan.layers]
    for new, old in enumerate(kept):
        ours = model.blocks[new].mlp.layers[0].weight.data
        theirs = work.model.blocks[int(old[-1])].mlp.layers[0].weight.data
        np.testing.assert_array_equal(ours, theirs)
    cached = model.generate([1, 2, 3], 8).data
    np.testing.assert_array_equal(cached, model.generate([1, 2, 3], 8, use_cache=False).data)


def test_a_plan_names_whole_blocks_and_not_their_parts():
    plan = RemoveLayers().plan(deep_gpt())
    assert len(plan.steps) == 1
    skipped = reasons(plan)
    assert {"token_embedding", "position_embedding", "norm"} <= skipped.keys()
    assert all(path.count(".") <= 1 for path in skipped)
    assert len([path for path in skipped if path.startswith("blocks")]) == 3


def test_as_many_go_as_can_and_one_stays_in_each_list():
    work = deep_gpt()
    plan = RemoveLayers(9).plan(work)
    assert len(plan.steps) == 3
    assert plan.notes == ("only 3 layers can be removed, 9 were asked for",)
    (last,) = [reason for path, reason in reasons(plan).items() if path.startswith("blocks")]
    assert last.endswith("nothing else of its kind is in its list")
    assert RemoveLayers(9).apply(work, plan).num_layers == 1


def test_the_layer_that_makes_the_outputs_stays_whatever_its_shape():
    model = Sequential(Linear(5, 5, rng=0), ReLU(), Linear(5, 5, rng=1), ReLU())
    x = Tensor(np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))
    plan = RemoveLayers(2).plan(Workload("square", model.eval(), (x,)))
    assert plan.layers == ("layers.0",)
    assert reasons(plan) == {"layers.2": "it makes the outputs: no weights come after it"}


def test_norms_do_not_spend_the_count():
    # these norms change nothing at all, so they would be missed least
    parts = [Linear(6, 8, rng=10), LayerNorm(8), Step(8, 0.5, 1), LayerNorm(8), Step(8, 0.1, 2)]
    model = Sequential(*parts, Linear(8, 3, rng=11))
    x = Tensor(np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32))
    plan = RemoveLayers(2).plan(Workload("norms", model.eval(), (x,)))
    assert set(plan.layers) == {"layers.2", "layers.4"}
    for path in ("layers.1", "layers.3"):
        assert reasons(plan)[path] == (
            "it multiplies by no matrix: without it next to nothing would be saved"
        )


def test_a_list_of_norms_alone_is_no_list_of_layers_that_can_go():
    model = Sequential(Sequential(LayerNorm(4), LayerNorm(4)), Linear(4, 3, rng=0))
    x = Tensor(np.ones((2, 4), np.float32))
    plan = RemoveLayers().plan(Workload("norms", model.eval(), (x,)))
    assert plan.is_empty
    assert plan.notes == ("no layer can be removed",)


def test_layers_whose_weights_are_in_another_form_can_go():
    model = Sequential(Linear(8, 8, rng=0), Linear(8, 8, rng=1), Linear(8, 3, rng=2))
    model.layers[1] = SparseLinear.of(model.layers[1])
    x = Tensor(np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32))
    with no_grad():
        plan = RemoveLayers(2).plan(Workload("sparse", model.eval(), (x,)))
    assert set(plan.layers) == {"layers.0", "layers.1"}


def test_one_of_many_is_said_in_the_singular():
    plan = RemoveLayers(2).plan(stack(1.0))
    assert plan.notes == ("only 1 layer can be removed, 2 were asked for",)


def test_without_calibration_the_inputs_judge():
    work = replace(stack(1.0, 0.01), calibration=())
    plan = RemoveLayers().plan(work)
    assert plan.layers == ("layers.2",)
    assert plan.steps[0].settings["change_alone"] > 0


def test_kept_layers_stay_also_if_only_a_part_is_kept():
    work = stack(1.0, 0.01, 0.02)
    plan = RemoveLayers(2, keep=("layers.2", "layers.3.linear", "nobody")).plan(work)
    assert plan.layers == ("layers.1",)
    assert reasons(plan)["layers.2"] == "kept by keep='layers.2'"
    assert reasons(plan)["layers.3"] == (
        "'layers.3.linear' in it is kept by keep='layers.3.linear'"
    )
    assert plan.notes[0] == "keep='nobody' matches no layer that can be removed"


def test_a_model_without_such_layers_stays_with_the_reasons():
    for name in ("mlp", "cnn", "branches", "shared"):
        work = workload(name)
        plan = RemoveLayers().plan(work)
        assert plan.is_empty
        assert plan.shrinkage is None
        assert reasons(plan)
        model = RemoveLayers().apply(work, plan)
        np.testing.assert_array_equal(calibrated(model, work), calibrated(work.model, work))


def test_a_model_that_counts_its_layers_keeps_them():
    class Numbered(Module):
        def __init__(self):
            self.steps = [Step(4, 0.1, seed) for seed in range(3)]
            self.scales = [1.0, 2.0, 3.0]
            self.head = Linear(4, 2, rng=9)

        def forward(self, x):
            for step, scale in zip(self.steps, self.scales, strict=False):
                x = step(x) * scale
            return self.head(x)

    work = Workload("numbered", Numbered().eval(), (Tensor(np.ones((2, 4), np.float32)),))
    skipped = reasons(RemoveLayers().plan(work))
    # the last one could go, if its scale went with it; skipping it is not the same
    assert all("does not simply go over its list" in skipped[f"steps.{n}"] for n in range(3))


def test_a_model_that_fails_without_a_layer_keeps_it():
    class Indexed(Module):
        def __init__(self):
            self.steps = [Step(4, 0.1, seed) for seed in range(2)]
            self.head = Linear(4, 2, rng=9)

        def forward(self, x):
            return self.head(self.steps[1](self.steps[0](x)))

    work = Workload("indexed", Indexed().eval(), (Tensor(np.ones((2, 4), np.float32)),))
    skipped = reasons(RemoveLayers().plan(work))
    assert "the model fails without it (IndexError: list index" in skipped["steps.0"]


def test_a_layer_in_several_places_and_one_that_nobody_calls_stay():
    twice = Step(8, 0.1, 0)
    model = Sequential(Linear(6, 8, rng=1), twice, twice, Step(8, 0.1, 2), Linear(8, 3, rng=3))
    model.spare = [Step(8, 0.1, 4), Step(8, 0.1, 5)]
    x = Tensor(np.ones((2, 6), np.float32))
    plan = RemoveLayers(3).plan(Workload("twice", model.eval(), (x,)))
    assert plan.layers == ("layers.3",)
    assert reasons(plan)["layers.1"] == "it stands in 2 places"
    assert reasons(plan)["spare.0"] == "it was not called"


def test_layers_that_would_save_nothing_stay():
    work = stack(0.1, 0.2)
    work.model.layers[1].linear = work.model.layers[2].linear
    skipped = reasons(RemoveLayers(2).plan(work))
    for path in ("layers.1", "layers.2"):
        assert skipped[path] == "others hold all of its weights: nothing would be saved"


def test_a_layer_makes_the_outputs_also_with_weights_that_another_one_has():
    model = Sequential(Step(4, 0.1, 0), Step(4, 0.2, 1), Step(4, 0.3, 2))
    model.layers[2].linear = model.layers[0].linear
    x = Tensor(np.ones((2, 4), np.float32))
    plan = RemoveLayers(2).plan(Workload("again", model.eval(), (x,)))
    assert plan.layers == ("layers.1",)
    assert "it makes the outputs" in reasons(plan)["layers.2"]


def test_without_data_nobody_can_tell():
    work = Workload("bare", Sequential(Linear(2, 2)), ())
    with pytest.raises(SettingError, match="there are none; give the workload `calibration`"):
        RemoveLayers().plan(work)


def test_calibration_that_does_not_fit_is_named():
    work = stack(1.0, 0.1)
    wrong = (*work.calibration[:1], (Tensor(np.ones((2, 7), np.float32)),))
    with pytest.raises(SettingError, match="calibration batch 1 does not fit the model"):
        RemoveLayers().plan(replace(work, calibration=wrong))


def test_a_plan_is_carried_out_only_for_its_model_and_transform():
    work = stack(1.0, 0.1)
    plan = RemoveLayers().plan(work)
    with pytest.raises(SettingError, match="this plan was made by RemoveLayers"):
        RemoveLayers(2).apply(work, plan)
    with pytest.raises(SettingError, match=r"no layer 'layers\.2' in a list of layers"):
        RemoveLayers().apply(deep_gpt(), plan)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_that_is_none_is_an_error(count):
    with pytest.raises(SettingError, match="count is a number of layers"):
        RemoveLayers(count)


def test_a_model_with_a_cache_attached_says_what_to_do():
    work = workload("gpt")
    enable_kv_cache(work.model, batch_size=2)
    with pytest.raises(SettingError, match="call disable_kv_cache"):
        RemoveLayers(count=1).plan(work)

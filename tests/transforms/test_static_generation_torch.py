from dataclasses import asdict, replace

import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, generated, prompts
from torch_workloads import bits_of, is_unchanged

from tinytorch.errors import MeasurementError
from tinytorch.models.pytorch_tensors import WrappedModel
from tinytorch.models.workload import Workload, preparations_of
from tinytorch.transforms.static_generation import StaticGeneration, generation, generation_call
from tinytorch.transforms.static_generation import torch as static_generation_torch
from tinytorch.transforms.static_generation.torch import StaticGenerator

PLAIN = StaticGeneration(compile=False)


def case(name="llama", *, ragged=False, count=12, dtype=torch.float32, **drawing):
    ids, mask = prompts()
    call = generation_call(decoder(name, dtype), max_new_tokens=count, **drawing)
    return Workload("text", call, (ids, mask) if ragged else (ids,))


def reason_of(workload, transform=PLAIN):
    plan = transform.plan(workload)
    assert plan.is_empty
    return plan.skipped[0].reason


@pytest.mark.parametrize("ragged", [False, True])
def test_the_plan_has_been_tried_and_tells_what_it_costs(ragged):
    workload = case(ragged=ragged)
    plan = PLAIN.plan(workload)
    assert plan.steps[0].what == "keys and values allocated once"
    assert "all 36 new tokens are those of generate()" in plan.notes
    # 2 layers, keys and values, 3 rows, 2 heads, 64 places, 8 numbers of 4 bytes
    assert (
        f"the cache holds {2 * 2 * 3 * 2 * 64 * 8 * 4 / 2**20:.3g} MiB all the time" in plan.notes
    )
    assert plan.speedup is None
    assert set(plan.not_predicted) == {"speedup", "shrinkage"}


def test_applying_it_gives_a_generator_of_a_copy():
    workload = case()
    bits = bits_of(workload.model)
    generator = PLAIN.apply(workload, PLAIN.plan(workload))
    assert isinstance(generator, StaticGenerator)
    assert generator.model is not workload.model.model
    assert generator.cache_bytes > 0
    assert torch.equal(generator(*workload.inputs), workload.model(*workload.inputs))
    assert is_unchanged(workload.model, bits)
    assert preparations_of(generator) == ()


def test_prompts_by_name_and_in_any_order_are_found():
    ids, mask = prompts()
    call = generation_call(decoder("llama"), max_new_tokens=5)
    workload = Workload("text", call, (), keywords={"attention_mask": mask, "input_ids": ids})
    plan = PLAIN.plan(workload)
    assert "all 15 new tokens are those of generate()" in plan.notes
    generator = PLAIN.apply(workload, plan)
    expected = generated(workload.model.model, ids, mask, count=5)
    assert torch.equal(generator(**workload.keywords), expected)


def test_drawing_is_the_same_with_the_same_seed_and_planning_draws_nothing():
    workload = case(do_sample=True, temperature=0.8, top_k=10)
    state = torch.get_rng_state()
    generator = PLAIN.apply(workload, PLAIN.plan(workload))
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = workload.model(*workload.inputs)
        torch.manual_seed(5)
        assert torch.equal(generator(*workload.inputs), expected)


def test_in_bfloat16_the_first_difference_is_explained_if_there_is_one():
    plan = PLAIN.plan(case(dtype=torch.bfloat16, count=40))
    assert not plan.is_empty
    told = [note for note in plan.notes if "new token" in note]
    assert all(note.endswith(("those of generate()", "than rounding")) for note in told)
    assert told


def test_a_difference_of_rounding_is_reported_and_a_real_one_refused(monkeypatch):
    own = generation.explain_divergence

    def planted(model, expected, found, prompt, mask):
        with torch.no_grad():
            after = model(expected[:1, : prompt + 2]).logits[0, -1].argsort(descending=True)
        found = found.clone()
        found[0, prompt + 2] = after[1]
        return own(model, expected, found, prompt, mask)

    monkeypatch.setattr(generation, "explain_divergence", planted)
    reason = reason_of(case())
    assert "the tokens are not those of generate()" in reason
    assert "more than rounding: a real difference" in reason


def test_a_prompt_padded_on_the_right_is_the_reason():
    ids, mask = prompts()
    call = generation_call(decoder("llama"), max_new_tokens=5)
    assert "padded on the left" in reason_of(Workload("text", call, (ids, mask.flip(1))))


def test_settings_and_models_that_cannot_be_are_the_reason():
    workload = case()
    workload.model.model.generation_config.repetition_penalty = 1.2
    assert "repetition_penalty=1.2" in reason_of(workload)
    assert "does not support such a cache" in reason_of(case("gpt_neo"))
    assert "do not fit into a cache of length=8" in reason_of(case(), StaticGeneration(length=8))
    training = case()
    training.model.train()
    assert "training mode" in reason_of(training)


def test_what_a_wrapper_inside_does_is_not_thrown_away():
    ids, _ = prompts()
    call = generation_call(WrappedModel(decoder("llama")), max_new_tokens=5)
    assert "it is a WrappedModel" in reason_of(Workload("text", call, (ids,)))


def test_a_trial_that_takes_too_long_is_given_up(monkeypatch):
    def endless(workload, model):
        while True:
            pass

    workload, hasty = case(), StaticGeneration(compile=False, limit_s=0.2)
    good = replace(PLAIN.plan(workload), settings=asdict(hasty))
    monkeypatch.setattr(static_generation_torch, "_call", endless)
    assert "did not return within 0.2 s" in reason_of(workload, hasty)
    with pytest.raises(MeasurementError, match=r"did not return within 0\.2 s"):
        hasty.apply(workload, good)


def test_an_empty_plan_gives_a_copy_that_generates_as_before():
    workload = case("gpt_neo")
    copy = PLAIN.apply(workload, PLAIN.plan(workload))
    assert type(copy) is type(workload.model)
    assert torch.equal(copy(*workload.inputs), workload.model(*workload.inputs))


@pytest.mark.slow
def test_a_compiled_step_is_told_with_its_time():
    workload = case()
    transform = StaticGeneration()
    plan = transform.plan(workload)
    assert plan.steps[0].what == "keys and values allocated once, the step compiled"
    assert any(note.startswith("compiled once in") for note in plan.notes)
    generator = transform.apply(workload, plan)
    assert [each.what for each in preparations_of(generator)] == [
        "compiled",
        "compiled while planning",
    ]
    assert torch.equal(generator(*workload.inputs), workload.model(*workload.inputs))

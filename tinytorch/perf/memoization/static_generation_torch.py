"""Planning and carrying out StaticGeneration for models of transformers. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_surgery import why_no_module
from tinytorch.comparison.time_limit import time_limit
from tinytorch.errors import ModelError, first_line
from tinytorch.perf.memoization.divergence_torch import explain_divergence
from tinytorch.perf.memoization.generation_torch import Generation, prompts_of
from tinytorch.perf.memoization.static_generator_torch import StaticGenerator, why_no_generator
from tinytorch.perf.memoization.token_choice_torch import TokenChoice
from tinytorch.workloads.plan import Plan, Skipped, Step
from tinytorch.workloads.preparation import Preparation, while_planning
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.memoization.static_generation import StaticGeneration

__all__ = ["apply_torch", "plan_torch"]

NAME = "StaticGeneration"
NOT_PREDICTED = {
    "speedup": "how much of a step is the program, and how much the device, is not known before; "
    "compare() measures it",
    "shrinkage": "the same parameters are held, and the whole cache from the beginning",
}
WHY = "no allocation and no question to the device between tokens, so a step can be replayed"


def plan_torch(workload: Workload, settings: StaticGeneration) -> Plan:
    """Generate once on a copy, greedily, and compare with the model's own way."""
    reason = _why_not(workload)
    if reason:
        return _nothing(settings, reason)
    generator = None
    try:
        with TorchAdapter().preserving(workload.model), time_limit(settings.limit_s, workload.name):
            copy = TorchAdapter().clone(workload.model)
            generator = _generator(copy, settings, choice=TokenChoice())
            found = _call(workload, generator)
            notes = tuple(_notes(workload, generator, found))
            done = dict.fromkeys(each.what for each in generator.preparations)
            spent = while_planning(generator.preparations).to_dict()
    except Exception as error:  # a compiler, a device or the model may raise anything
        return _nothing(settings, first_line(error))
    finally:
        if generator is not None:
            generator.release()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    what = "keys and values allocated once" + "".join(f", the step {each}" for each in done)
    return Plan(
        NAME,
        asdict(settings),
        (Step("", what, WHY, {"planning": spent}),),
        not_predicted=NOT_PREDICTED,
        notes=notes,
    )


def apply_torch(
    model: Generation, workload: Workload, plan: Plan, settings: StaticGeneration
) -> StaticGenerator:
    """Give a generator that has generated for the workload's inputs once."""
    generator = _generator(model, settings, choice=model.choice)
    spent = Preparation.from_dict(plan.steps[0].settings["planning"])
    generator.planning = (spent,) if spent.seconds else ()
    with TorchAdapter().preserving(workload.model), time_limit(settings.limit_s, workload.name):
        _call(workload, generator)
    return generator


def _generator(
    model: Generation, settings: StaticGeneration, *, choice: TokenChoice
) -> StaticGenerator:
    return StaticGenerator(
        model.model,
        max_new_tokens=model.max_new_tokens,
        choice=choice,
        length=settings.length,
        compile=settings.compile,
        capture=settings.capture,
    )


def _call(workload: Workload, model: Any) -> torch.Tensor:
    with torch.no_grad():
        tokens: torch.Tensor = model(*workload.inputs, **workload.keywords)
    return tokens


def _why_not(workload: Workload) -> str:
    return why_no_module(workload.model) or why_no_generator(workload.model.model)


def _notes(workload: Workload, generator: StaticGenerator, found: torch.Tensor) -> Iterator[str]:
    """Say what it costs, and whether the tokens are the same; raise if they should be."""
    for done in generator.preparations:
        held = "" if done.nbytes is None else f", {done.nbytes / 2**20:.3g} MiB stay taken for it"
        yield f"{done.what} once in {done.seconds:.2g} s{held}"
    yield f"the cache holds {generator.cache_bytes / 2**20:.3g} MiB all the time"
    yield from generator.notes
    decoder = generator.model
    own = Generation(decoder, max_new_tokens=generator.max_new_tokens, choice=TokenChoice())
    expected = _call(workload, own)
    ids, mask = prompts_of(workload.inputs, workload.keywords)
    prompt = ids.shape[1]
    parted = explain_divergence(decoder, expected, found, prompt, mask)
    for each in parted:
        if not each.is_rounding:
            raise ModelError(f"the tokens are not those of generate(): {each}")
        yield str(each)
    if not parted:
        yield f"all {found[:, prompt:].numel()} new tokens are those of generate()"


def _nothing(settings: StaticGeneration, reason: str) -> Plan:
    return Plan(NAME, asdict(settings), (), (Skipped("", reason),))

"""StaticGeneration: the transform that generates with a cache which is allocated once."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tinytorch.codec import Coded
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import TIME, Plan, TorchTransform, Variant, check_seconds


@dataclass(frozen=True)
class StaticGeneration(TorchTransform):
    """Generate text with preallocated keys and values and a step that is compiled and captured.

    For decoders of transformers, by their interface for caches; the model of the workload is what
    :func:`generation_call` gives. A step is captured on CUDA only. `length` is the room for prompt
    and new tokens together, by default as much as the workload needs. A compilation that takes
    longer than `limit_s` is given up.
    """

    variants = (
        Variant(
            "static-generation",
            "static KV cache and a compiled decoding step",
            cost="compiling and capturing before the first text; a cache of full length",
        ),
    )
    role, place, order = "kernels", 9, 200
    risk, serves = "exact", TIME
    made_for, made_by = "Generation", "tinytorch.perf.memoization.generation_call"
    setup_s = 40.0
    follows_weights = is_prepared = True

    for_others = "its own generate(cache=...) keeps a cache"

    compile: bool = True
    capture: bool = True
    length: int | None = None
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        check_length(self.length)
        check_seconds("limit_s", self.limit_s)

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        reason = _why_not_generation(workload.model) or why_no_transformers()
        return self.skipping(reason) if reason else super().make_plan(workload, profile)

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.static_generation import torch as static_generation_torch

        return static_generation_torch


def check_length(length: int | None) -> None:
    """Raise unless a prompt and a new token have room."""
    if length is not None and not (type(length) is int and length >= 2):
        raise SettingError(f"length={length}; a prompt and a new token need at least 2")


def why_no_transformers() -> str:
    """Return why models of transformers cannot be given a cache of ours, or ""."""
    try:
        _import_caches()
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            return f"transformers cannot be used: {error}"
        return "transformers is not installed; install it with: pip install transformers"
    except (ImportError, AttributeError) as error:
        return f"this version of transformers has no caches made of layers ({error}); update it"
    return ""


def _import_caches() -> None:
    from tinytorch.transforms.static_generation import cache  # noqa: F401


def _why_not_generation(model: Any) -> str:
    from tinytorch.models.pytorch_tensors import wrappers_of
    from tinytorch.transforms.static_generation.generation import Generation

    if isinstance(model, Generation):
        return ""
    if any(isinstance(each, Generation) for each in wrappers_of(model)):
        name = type(model).__name__
        return f"it is a {name} around a text that is generated, and would no longer be called so"
    return (
        f"it is a {type(model).__name__}, whose call gives no text; "
        "generation_call(model, max_new_tokens=...) makes a model whose call does"
    )


def generation_call(
    model: Any,
    *,
    max_new_tokens: int,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Any:
    """Return a model whose call is `generate` of a decoder of transformers, with these settings.

    It is called with `input_ids` and, for prompts of different lengths, an `attention_mask`; so it
    can be the model of a Workload.
    """
    from tinytorch.transforms.static_generation.generation import Generation, TokenChoice

    choice = TokenChoice(do_sample, temperature, top_k, top_p)
    return Generation(model, max_new_tokens=max_new_tokens, choice=choice)


def static_generator(
    model: Any,
    *,
    max_new_tokens: int = 20,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length: int | None = None,
    compile: bool = True,
    capture: bool = True,
) -> Any:
    """Return a generator for a decoder of transformers, which itself is not changed.

    Calling it, or its `generate`, returns the tokens that `model.generate` would with the same
    settings: those given here, and the special tokens of the model's `generation_config`. What has
    to be compiled and captured is, at the first call for a batch size and length.
    """
    check_length(length)
    reason = why_no_transformers()
    if reason:
        raise MissingPartError(reason)
    from tinytorch.transforms.static_generation.generation import TokenChoice
    from tinytorch.transforms.static_generation.torch import StaticGenerator

    return StaticGenerator(
        model,
        max_new_tokens=max_new_tokens,
        choice=TokenChoice(do_sample, temperature, top_k, top_p),
        length=length,
        compile=compile,
        capture=capture,
    )


# ---------------------------------------------------------------- divergence: where two
# generations part, and whether that is a matter of rounding


@dataclass(frozen=True)
class Divergence(Coded):
    """The first token in which two generations of one sequence differ.

    `place` counts new tokens from 0. `gap` is by how much the model itself prefers the expected
    token to the one found, in its scores. `noise` is how far these scores move when the model
    computes them in another order: the whole text at once, or token by token with its own cache.
    `strays_at` is the first token after it that the model would not write after the tokens found
    before, however it rounds; None where there is none.
    """

    sequence: int
    place: int
    expected: int
    found: int
    gap: float
    noise: float
    strays_at: int | None = None

    also_written = ("is_rounding",)

    @property
    def is_rounding(self) -> bool:
        """Return whether the two tokens are closer than the model's own scores are exact.

        What follows must be the model's own text, too.
        """
        return abs(self.gap) <= 2 * self.noise and self.strays_at is None

    def __str__(self) -> str:
        how = (
            "no more than rounding" if self.is_rounding else "more than rounding: a real difference"
        )
        apart = f"their scores are {self.gap:.3g} apart"
        if self.strays_at is not None:
            how = f"new token {self.strays_at} is none that it would write: a real difference"
        return (
            f"sequence {self.sequence} differs from new token {self.place} on "
            f"({self.found} instead of {self.expected}): {apart}, and the model's own scores "
            f"move by {self.noise:.3g} with the order of computing; {how}"
        )

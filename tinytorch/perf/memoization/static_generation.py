"""StaticGeneration: the transform that generates with a cache which is allocated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tinytorch.errors import MissingPartError, SettingError
from tinytorch.workloads.pytorch_only import TorchTransform
from tinytorch.workloads.workload import Workload

__all__ = ["StaticGeneration", "generation_call", "static_generator"]

NAME = "StaticGeneration"


@dataclass(frozen=True)
class StaticGeneration(TorchTransform):
    """Generate text with preallocated keys and values and a step that is compiled and captured.

    For decoders of transformers, by their interface for caches; the model of the workload is what
    :func:`generation_call` gives. A step is captured on CUDA only. `length` is the room for prompt
    and new tokens together, by default as much as the workload needs. A compilation that takes
    longer than `limit_s` is given up.
    """

    subject = "generation with a preallocated cache"
    for_others = "generate(cache=...) of its own keeps a cache"

    compile: bool = True
    capture: bool = True
    length: int | None = None
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        check_length(self.length)
        if not 0 < self.limit_s < math.inf:
            raise SettingError(f"limit_s={self.limit_s}; it must be a positive number of seconds")

    def why_not(self, workload: Workload) -> str:
        """Say why there is nothing to do, without importing transformers for it, or nothing."""
        return _why_not_generation(workload.model) or why_no_transformers()

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.perf.memoization import static_generation_torch

        return static_generation_torch


def check_length(length: int | None) -> None:
    """Raise unless a prompt and a new token have room."""
    if length is not None and not (type(length) is int and length >= 2):
        raise SettingError(f"length={length}; a prompt and a new token need at least 2")


def why_no_transformers() -> str:
    """Say why models of transformers cannot be given a cache of ours, or nothing."""
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
    from tinytorch.perf.memoization import decode_attention_torch, static_cache_torch  # noqa: F401


def _why_not_generation(model: Any) -> str:
    from tinytorch.adapters.pytorch_wrapping import wrappers_of
    from tinytorch.perf.memoization.generation_torch import Generation

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
    """Give a model whose call is `generate` of a decoder of transformers, with these settings.

    It is called with `input_ids` and, for prompts of different lengths, an `attention_mask`; so it
    can be the model of a Workload.
    """
    from tinytorch.perf.memoization.generation_torch import Generation
    from tinytorch.perf.memoization.token_choice_torch import TokenChoice

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
    """Give a generator for a decoder of transformers, which itself stays as it is.

    Calling it, or its `generate`, gives the tokens that `model.generate` would with the same
    settings: those given here, and the special tokens of the model's `generation_config`. What has
    to be compiled and captured is, at the first call for a batch size and length.
    """
    check_length(length)
    reason = why_no_transformers()
    if reason:
        raise MissingPartError(reason)
    from tinytorch.perf.memoization.static_generator_torch import StaticGenerator
    from tinytorch.perf.memoization.token_choice_torch import TokenChoice

    return StaticGenerator(
        model,
        max_new_tokens=max_new_tokens,
        choice=TokenChoice(do_sample, temperature, top_k, top_p),
        length=length,
        compile=compile,
        capture=capture,
    )

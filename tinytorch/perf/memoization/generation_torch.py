"""Generation: `model.generate` as a call that can be measured, planned for and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tinytorch.adapters.pytorch_wrapping import WrappedModel, around_calls
from tinytorch.adapters.values import Array
from tinytorch.errors import ModelError, SettingError
from tinytorch.perf.memoization.token_choice_torch import TokenChoice

__all__ = [
    "Generation",
    "check_new_tokens",
    "prompts_of",
    "special_tokens",
    "unlike_settings",
    "vocabulary_size",
]

HANDLED = {
    "max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "use_cache",
    "cache_implementation", "cache_config", "max_cache_len", "pad_token_id", "bos_token_id",
    "eos_token_id", "transformers_version", "compile_config", "disable_compile",
    "early_stopping", "length_penalty", "decoder_start_token_id", "assistant_early_exit",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind",
    "num_assistant_tokens", "num_assistant_tokens_schedule",
}  # fmt: skip
"""What is given with each call, or does not matter for one beam of one decoder."""
NEUTRAL = {
    "num_beams": 1, "num_return_sequences": 1, "num_beam_groups": 1, "repetition_penalty": 1,
    "encoder_repetition_penalty": 1, "typical_p": 1, "guidance_scale": 1,
}  # fmt: skip
"""What leaves the tokens as they are; for all others that is zero, nothing or no."""
PROFILED_TOKENS = 8
"""So many show all layers, at the prompt and after it; recording hundreds takes minutes."""


class Generation(WrappedModel):
    """A decoder of transformers whose call generates text, by its own `generate`."""

    def __init__(self, model: Any, *, max_new_tokens: int, choice: TokenChoice) -> None:
        if not hasattr(model, "generate") or not hasattr(model, "generation_config"):
            raise ModelError(
                f"{type(model).__name__} has no generate(); give a decoder of transformers, such "
                "as AutoModelForCausalLM gives one"
            )
        check_new_tokens(max_new_tokens)
        super().__init__(model)
        self.max_new_tokens = max_new_tokens
        self.choice: TokenChoice = choice

    @property
    def is_drawn(self) -> bool:
        """Whether tokens are drawn, so that every text is another one."""
        return self.choice.do_sample

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Give the prompts and the tokens after them."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        choice = self.choice
        drawing: dict[str, Any] = {"do_sample": choice.do_sample}
        if choice.do_sample:
            drawing |= {"temperature": choice.temperature, "top_k": choice.top_k}
            drawing["top_p"] = choice.top_p
        _, pad = special_tokens(self.model)
        generate: Any = self.model.generate
        with around_calls(self.model):  # generate() goes past its wrappers
            tokens: torch.Tensor = generate(
                input_ids,
                attention_mask=mask,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=pad,
                **drawing,
            )
        return tokens

    def shortened_for_profile(self) -> tuple[Generation, str]:
        """Give a call of the same decoder that is quick to record, and what to say about it.

        It is the call itself, and nothing to say, where that writes few tokens.
        """
        if self.max_new_tokens <= PROFILED_TOKENS:
            return self, ""
        shorter = Generation(self.model, max_new_tokens=PROFILED_TOKENS, choice=self.choice)
        return shorter.train(self.training), (
            f"the profile is of {PROFILED_TOKENS} new tokens, of {self.max_new_tokens}: recording "
            "all of them would take long, and every one runs the same layers"
        )

    def rounding_explains(
        self,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        expected: Sequence[Array],
        found: Sequence[Array],
    ) -> tuple[str, ...]:
        """Say why other tokens are a matter of rounding, in one text per sequence that differs.

        Nothing is said where one of them is not, or where tokens are drawn.
        """
        from tinytorch.perf.memoization.divergence_torch import explain_divergence

        if self.choice.do_sample or len(expected) != 1 or len(found) != 1:
            return ()
        ids, mask = prompts_of(inputs, keywords)
        own, other = (torch.as_tensor(each[0], device=ids.device) for each in (expected, found))
        parted = explain_divergence(self.model, own, other, ids.shape[1], mask)
        return tuple(map(str, parted)) if all(each.is_rounding for each in parted) else ()


def prompts_of(
    inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the tokens and the mask of a call, however they are passed."""
    named = {**dict(zip(("input_ids", "attention_mask"), inputs, strict=False)), **keywords}
    return named["input_ids"], named.get("attention_mask")


def check_new_tokens(count: Any) -> None:
    """Raise unless this is a number of tokens."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise SettingError(f"max_new_tokens={count!r}; it must be a whole number")
    if count < 1:
        raise SettingError(f"max_new_tokens={count}; it must be at least 1")


def special_tokens(model: Any) -> tuple[tuple[int, ...], int]:
    """Give the tokens that end a sequence, and what is written after them."""
    config = model.generation_config
    ends = config.eos_token_id
    stops = () if ends is None else tuple(ends) if isinstance(ends, (list, tuple)) else (ends,)
    pad = config.pad_token_id
    return stops, (stops[0] if stops else 0) if pad is None else pad


def vocabulary_size(model: Any) -> int:
    """Give how many tokens a model knows."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


def unlike_settings(model: Any) -> dict[str, Any]:
    """Give the settings of a model's generation that would choose other tokens than ours."""
    settings = vars(model.generation_config)
    return {
        name: value
        for name, value in settings.items()
        if not name.startswith("_") and name not in HANDLED
        if value and value != NEUTRAL.get(name)
    }

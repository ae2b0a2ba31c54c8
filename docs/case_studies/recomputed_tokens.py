"""A writer of text that looks at the whole text again for each token."""

import numpy as np

from tinytorch import Tensor, no_grad
from tinytorch.core.module import Module
from tinytorch.core.transformers import GPT

PROMPT, NEW_TOKENS = 96, 16


class Recomputing(Module):
    """Continues a prompt (1, time) by the most likely tokens: call, take the last, call again."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT(96, 128, 4, 4, max_seq_len=512, rng=0)

    def forward(self, prompt: Tensor) -> Tensor:
        tokens = prompt.data
        with no_grad():
            for _ in range(NEW_TOKENS):
                scores = self.gpt(Tensor(tokens)).data  # (1, time, vocabulary)
                tokens = np.append(tokens, scores[:, -1:].argmax(axis=-1), axis=1)
        return Tensor(tokens)


class Remembering(Recomputing):
    """The same tokens; keys and values of earlier ones are kept."""

    def forward(self, prompt: Tensor) -> Tensor:
        return self.gpt.generate(prompt, NEW_TOKENS)


def slow() -> tuple[Module, Tensor]:
    """Give a writer that computes everything anew, and its prompt."""
    return Recomputing().eval(), _prompt()


def fixed() -> tuple[Module, Tensor]:
    """Give a writer with the same weights and a key-value cache."""
    return Remembering().eval(), _prompt()


def _prompt() -> Tensor:
    return Tensor(np.random.default_rng(0).integers(0, 96, (1, PROMPT)))

"""Continuing prompts token by token, with or without a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.embeddings import CheckedIds, token_ids
from tinytorch.core.kernels import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CacheFullError, DTypeError, SettingError, ShapeError

if TYPE_CHECKING:
    from tinytorch.core.language_model import LanguageModel

__all__ = [
    "Continuation",
    "OnToken",
    "Prompts",
    "Sampler",
    "cache_for",
    "check_count",
    "continue_prompts",
    "read_prompts",
    "without_attached_cache",
]


# ---------------------------------------------------------------- choosing the next token from
# logits


@dataclass(frozen=True)
class Sampler:
    """How to choose: the likeliest token at temperature 0, else a draw.

    `top_k` keeps the k likeliest tokens (and those that tie with the last of them); `top_p` then
    keeps the likeliest ones that together reach probability p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SettingError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise SettingError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be in (0, 1], got {self.top_p}")

    def choose(self, logits: Array, rng: np.random.Generator) -> Array:
        """Choose one token per row of logits (batch, vocabulary)."""
        likeliest = logits.argmax(axis=-1)
        # NaN counts as the largest, so looking at the largest is enough.
        highest = logits[np.arange(len(logits)), likeliest]
        if not np.isfinite(highest).all():
            raise _not_a_choice(highest)
        if self.temperature == 0:
            return likeliest
        probabilities = self.probabilities(logits)
        cumulative = probabilities.cumsum(axis=-1)
        draws = rng.random((len(logits), 1)) * cumulative[:, -1:]
        return (cumulative <= draws).sum(axis=-1)

    def probabilities(self, logits: Array) -> Array:
        """Return the sampling distribution, in float64, for a temperature above 0."""
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):  # at a tiny temperature all but the likeliest are -inf
            scores = shifted / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            smallest_kept = np.partition(logits, -self.top_k, axis=-1)[:, -self.top_k, None]
            scores = np.where(logits < smallest_kept, -np.inf, scores)
        exponentials = np.exp(scores)
        probabilities: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-probabilities, axis=-1, kind="stable")
            ranked = np.take_along_axis(probabilities, order, axis=-1)
            before = ranked.cumsum(axis=-1) - ranked  # what likelier tokens already reach
            ranked[before >= self.top_p] = 0
            np.put_along_axis(probabilities, order, ranked, axis=-1)
            probabilities /= probabilities.sum(axis=-1, keepdims=True)
        return probabilities


def _not_a_choice(highest: Array) -> SettingError:
    if np.isnan(highest).any():
        return SettingError("the logits hold NaN, so no token can be chosen; check the weights")
    wrong = highest[~np.isfinite(highest)][0]
    return SettingError(
        f"the largest logit is {wrong}, so no token can be chosen; check the weights"
    )


# ---------------------------------------------------------------- continuing prompts token by
# token, with or without a key-value cache

OnToken = Callable[[Array], Any]


# ---------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Prompts:
    """Token ids (batch, time), left-padded by `padding` (batch,) tokens.

    `form` is what was given: one `row`, a `batch` of equal rows, or a `list` of unequal ones.
    """

    ids: Array
    padding: Array
    form: Literal["row", "batch", "list"]

    @property
    def is_ragged(self) -> bool:
        return bool(self.padding.any())


def read_prompts(prompt: Any, vocab_size: int) -> Prompts:
    """Check a prompt (time,), prompts (batch, time), or a list of prompts of any lengths."""
    if isinstance(prompt, (list, tuple)) and prompt and all(map(_is_row, prompt)):
        return _from_rows([token_ids(row, vocab_size) for row in prompt])
    ids = token_ids(prompt, vocab_size)
    if ids.ndim not in (1, 2) or 0 in ids.shape:
        raise ShapeError(
            f"a prompt is (time,) or (batch, time) with a token, got {ids.shape}; "
            "prompts of different lengths come as a list"
        )
    rows = ids.reshape(-1, ids.shape[-1]).astype(np.int64)
    return Prompts(rows, np.zeros(len(rows), np.int64), "row" if ids.ndim == 1 else "batch")


def _is_row(item: Any) -> bool:
    if isinstance(item, (Tensor, np.ndarray)):
        return item.ndim == 1
    return isinstance(item, (list, tuple)) and not any(
        isinstance(inner, (list, tuple, np.ndarray)) for inner in item
    )


def _from_rows(rows: list[Array]) -> Prompts:
    lengths = np.array([len(row) for row in rows])
    if not lengths.all():
        number = int(np.flatnonzero(lengths == 0)[0])
        raise ShapeError(f"prompt {number} of {len(rows)} is empty; it needs at least one token")
    longest = int(lengths.max())
    ids = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = row
    padding = longest - lengths
    return Prompts(ids, padding, "list" if padding.any() else "batch")


# ---------------------------------------------------------------- generating


def continue_prompts(
    model: LanguageModel,
    prompts: Prompts,
    count: int,
    *,
    sampler: Sampler,
    rng: np.random.Generator,
    stop_token: int | None = None,
    cache: KVCache | None = None,
    on_token: OnToken | None = None,
) -> Tensor | list[Tensor]:
    """Add up to `count` tokens to each prompt, in the form in which the prompts were given."""
    text = Continuation(model, prompts, count, cache)
    running = np.ones(len(prompts.ids), bool)
    for _ in range(count):
        chosen = sampler.choose(text.next_logits(), rng)
        if stop_token is not None:
            chosen = np.where(running, chosen, stop_token)
        text.append(chosen, running)
        if on_token is not None:
            on_token(chosen.copy())
        if stop_token is not None:
            running &= chosen != stop_token
            if not running.any():
                break
    return text.result()


class Continuation:
    """Prompts, and what a model has added to them so far.

    Past the `max_seq_len` tokens of the model, positions begin anew with every token. Nothing of a
    cache holds then, and the last tokens that fit are computed afresh.
    """

    def __init__(
        self, model: LanguageModel, prompts: Prompts, count: int, cache: KVCache | None = None
    ) -> None:
        rows, time = prompts.ids.shape
        self.model = model
        self.prompts = prompts
        self.cache = cache
        self.length = time
        self._ids = np.zeros((rows, time + count), np.int64)
        self._ids[:, :time] = prompts.ids
        self._ends = np.full(rows, time)
        self._unseen = prompts.ids
        if cache is not None:
            cache.reset(prompts.padding)

    def next_logits(self) -> Array:
        """Return the logits (batch, vocabulary) of the next token."""
        if self.cache is None or self.length > self.model.max_seq_len:
            return self._plain_logits()
        unseen = CheckedIds.of(self._unseen, self.model.vocab_size)
        logits, _ = self.model.forward_with_cache(unseen, self.cache, last_only=True)
        return logits.data[:, -1]

    def _plain_logits(self) -> Array:
        """Compute everything again; rows of one length together, so that none needs padding."""
        seen = np.minimum(self.length - self.prompts.padding, self.model.max_seq_len)
        lengths = np.unique(seen).tolist()
        found: list[tuple[Array, Array]] = []
        for length in lengths:
            rows = np.flatnonzero(seen == length)
            ids = self._ids[rows, self.length - length : self.length]
            with no_grad():
                logits = self.model(CheckedIds.of(ids, self.model.vocab_size))
            found.append((rows, logits.data[:, -1]))
        if len(found) == 1:
            return found[0][1]
        joint = np.empty((len(seen), self.model.vocab_size), found[0][1].dtype)
        for rows, logits in found:
            joint[rows] = logits
        return joint

    def append(self, tokens: Array, running: Array) -> None:
        """Add a token (batch,) to every row; those that are not running end before it."""
        self._ids[:, self.length] = tokens
        self.length += 1
        self._ends[running] = self.length
        self._unseen = tokens[:, None]

    def result(self) -> Tensor | list[Tensor]:
        """Return prompts and continuations; rows of a list without padding, each to its own end."""
        if self.prompts.form == "row":
            return Tensor(self._ids[0, : self.length])
        if self.prompts.form == "batch":
            return Tensor(self._ids[:, : self.length])
        return [
            Tensor(row[start:end].copy())
            for row, start, end in zip(self._ids, self.prompts.padding, self._ends, strict=True)
        ]


def cache_for(
    model: LanguageModel, prompts: Prompts, count: int, given: KVCache | None
) -> KVCache | None:
    """Return a cache with room for a generation: the given one if it fits, or a new one.

    None means that no cache is of use, because the prompt alone fills the model.
    """
    batch, time = prompts.ids.shape
    if given is not None:
        model.check_cache(given, batch)
        if given.dtype != model.norm.weight.dtype:
            raise DTypeError(
                f"the cache holds {given.dtype}, the model computes in {model.norm.weight.dtype}; "
                "make_cache() returns one that fits"
            )
        if time > given.max_seq_len:
            raise CacheFullError(
                f"a prompt of {time} tokens is longer than the cache, which has room for "
                f"{given.max_seq_len}; make a longer one"
            )
    if time > model.max_seq_len or count == 0:
        return None
    needed = min(time + count - 1, model.max_seq_len)  # the last token is never an input
    if given is None:
        return model.make_cache(batch, needed)
    if needed > given.max_seq_len:
        raise CacheFullError(
            f"the cache has room for {given.max_seq_len} tokens; a prompt of {time} and "
            f"{count} new ones need {needed}; make a longer one, or generate fewer tokens"
        )
    return given


def check_count(max_new_tokens: Any) -> None:
    """Raise unless it is a number of tokens."""
    if not isinstance(max_new_tokens, (int, np.integer)) or max_new_tokens < 0:
        raise SettingError(f"max_new_tokens must be at least 0, got {max_new_tokens!r}")


@contextmanager
def without_attached_cache(model: LanguageModel) -> Iterator[None]:
    """Bypass a cache attached to the `forward` of a model, for the duration of the block."""
    attached = vars(model).get("attached_cache")
    if attached is None:
        yield
        return
    was_paused, attached.is_paused = attached.is_paused, True
    try:
        yield
    finally:
        attached.is_paused = was_paused

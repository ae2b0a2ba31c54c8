"""StaticGenerator: text from a decoder of transformers, with a preallocated cache."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from typing import Any

import torch

from tinytorch.adapters.pytorch_surgery import why_no_module
from tinytorch.adapters.pytorch_wrapping import WrappedModel
from tinytorch.errors import (
    BackendError,
    DTypeError,
    ModelError,
    SettingError,
    ShapeError,
    TokenError,
)
from tinytorch.perf.memoization.decode_session_torch import DecodeSession, SessionSettings
from tinytorch.perf.memoization.generation_torch import (
    check_new_tokens,
    special_tokens,
    unlike_settings,
    vocabulary_size,
)
from tinytorch.perf.memoization.static_cache_torch import why_no_cache
from tinytorch.perf.memoization.token_choice_torch import TokenChoice
from tinytorch.workloads.preparation import Preparation

__all__ = ["MOST_SESSIONS", "StaticGenerator", "why_no_generator"]

ROUNDED_TO = 64
"""Caches have lengths that are multiples of this, so that few of them serve many requests."""
LOOK_EVERY = 16
"""After so many tokens it is looked whether all sequences have ended: looking means waiting."""
MOST_SESSIONS = 8
"""So many batch sizes, lengths and ways of choosing are kept ready."""


class StaticGenerator(WrappedModel):
    """A model whose `generate` uses preallocated keys and values, and a step that is replayed.

    Everything that is needed once per batch size and length is made at the first call for them, or
    by :meth:`prepare`; `preparations` says how long it took. Of these, eight are kept: the one that
    was not used for longest makes room for another. Prompts of different lengths are padded on the
    left, as for `model.generate`, with an `attention_mask`.

    Calls of several threads wait for each other. A copy has nothing prepared. If weights are moved
    or converted, everything is made anew.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_new_tokens: int = 20,
        choice: TokenChoice | None = None,
        length: int | None = None,
        compile: bool = True,
        capture: bool = True,
    ) -> None:
        reason = why_no_generator(model)
        if reason:
            raise ModelError(f"no generation with a preallocated cache: {reason}")
        check_new_tokens(max_new_tokens)
        super().__init__(model)
        self.max_new_tokens = max_new_tokens
        self.choice = choice or TokenChoice()
        self.length = length
        self.does_compile, self.does_capture = compile, capture
        self._begin()

    def _begin(self) -> None:
        self._sessions: dict[SessionSettings, DecodeSession] = {}  # the latest used is the last
        self._weights: tuple[Any, ...] = ()
        self._dropped = 0
        self._lock = threading.RLock()
        self.planning: tuple[Preparation, ...] = ()
        """What a plan has spent on trying it."""

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_sessions", "_weights", "_dropped", "_lock", "planning")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore: Any = super().__setstate__
        restore(state)
        self._begin()

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """What was done once, for all batch sizes and lengths that are kept ready."""
        own = (each for held in self._sessions.values() for each in held.preparations)
        return (*own, *self.planning)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be done, and why."""
        told = dict.fromkeys(n for held in self._sessions.values() for n in held.notes)
        if self._dropped:
            told[
                f"no more than {MOST_SESSIONS} combinations of batch size, length and settings are "
                f"kept ready, so {self._dropped} were dropped and have to be prepared again"
            ] = None
        return tuple(told)

    @property
    def cache_bytes(self) -> int:
        """The bytes of keys and values that are held."""
        return sum(held.cache_bytes for held in self._sessions.values())

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Generate with the settings that the generator was made with."""
        return self.generate(input_ids, attention_mask)

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        **drawing: Any,
    ) -> torch.Tensor:
        """Give the prompts and the tokens after them, like `model.generate` of transformers.

        `do_sample`, `temperature`, `top_k` and `top_p` are those of the generator unless given.
        """
        new = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        choice = _changed(self.choice, drawing)
        # Buffers outlive the call, so they must not be made for inference mode only.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            seen = self._checked(input_ids, attention_mask, new)
            session = self._session(input_ids, seen, new, choice)
            return _generated(session, input_ids, seen, new)

    def prepare(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> None:
        """Allocate, compile and capture for a batch like this one."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            seen = self._checked(input_ids, attention_mask, self.max_new_tokens)
            self._session(input_ids, seen, self.max_new_tokens, self.choice)

    def release(self) -> None:
        """Free all that is kept ready; it is made anew when it is needed."""
        with self._lock:
            while self._sessions:
                self._sessions.popitem()[1].close()

    # ------------------------------------------------------------ sessions

    def _session(
        self, ids: torch.Tensor, seen: torch.Tensor, new: int, choice: TokenChoice
    ) -> DecodeSession:
        weights = _weights(self.model)
        if weights != self._weights:  # what was captured would read the old ones
            self.release()
            self._weights = weights
        settings = self._settings(ids, seen, new, choice)
        session = self._sessions.pop(settings, None)
        if session is None:
            while len(self._sessions) >= MOST_SESSIONS:
                self._sessions.pop(next(iter(self._sessions))).close()
                self._dropped += 1
            session = DecodeSession(self.model, settings, ids.device)
            session.prepare()
        self._sessions[settings] = session
        return session

    def _settings(
        self, ids: torch.Tensor, seen: torch.Tensor, new: int, choice: TokenChoice
    ) -> SessionSettings:
        needed = ids.shape[1] + new
        stops, pad = special_tokens(self.model)
        kind = ids.device.type
        return SessionSettings(
            batch=ids.shape[0],
            length=self.length or -(-needed // ROUNDED_TO) * ROUNDED_TO,
            choice=choice if choice.do_sample else TokenChoice(),
            stops=stops,
            pad=pad,
            is_ragged=not bool(seen.all()),
            compile=self.does_compile,
            capture=self.does_capture,
            cast=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        )

    # ------------------------------------------------------------ what is asked for

    def _checked(self, ids: Any, mask: Any, new: Any) -> torch.Tensor:
        """Give which tokens of a prompt count, all of them without a mask."""
        if any(each.training for each in self.model.modules()):
            raise ModelError(
                "the model is in training mode, in which layers such as dropout are random; call "
                "eval() first"
            )
        unlike = unlike_settings(self.model)
        if unlike:
            raise ModelError(_asks_for_more(unlike))
        check_new_tokens(new)
        _check_ids(ids, self.model)
        self._check_room(ids.shape[1], new)
        return torch.ones_like(ids, dtype=torch.bool) if mask is None else _seen(mask, ids)

    def _check_room(self, prompt: int, new: int) -> None:
        config: Any = self.model.config
        most = getattr(config.get_text_config(), "max_position_embeddings", None)
        limits = (("a cache of length", self.length), ("max_position_embeddings", most))
        for name, limit in limits:
            if isinstance(limit, int) and prompt + new > limit > 0:
                raise SettingError(
                    f"{prompt} tokens of prompt and {new} new ones do not fit into {name}={limit}"
                )


def why_no_generator(model: Any) -> str:
    """Say why a model cannot generate with a preallocated cache, or nothing."""
    if isinstance(model, WrappedModel):
        name = type(model).__name__
        return f"it is a {name}, whose own way of calling would be lost; give the model in it"
    reason = why_no_cache(model) or why_no_module(model)
    unlike = {} if reason else unlike_settings(model)
    return _asks_for_more(unlike) if unlike else reason


def _asks_for_more(unlike: dict[str, Any]) -> str:
    named = ", ".join(f"{name}={value!r}" for name, value in unlike.items())
    return f"its generation_config asks for more than choosing tokens by their scores: {named}"


def _generated(
    session: DecodeSession, ids: torch.Tensor, seen: torch.Tensor, new: int
) -> torch.Tensor:
    prompt = ids.shape[1]
    with session.running():
        session.read(ids, seen)
        for count in range(1, new):
            is_time = session.settings.stops and count % LOOK_EVERY == 0
            if is_time and bool(session.is_done.all()):
                break
            session.step()
    tokens = session.tokens[:, : prompt + new].clone()
    return _until_all_ended(tokens, prompt, session.stops)


def _until_all_ended(tokens: torch.Tensor, prompt: int, stops: torch.Tensor) -> torch.Tensor:
    """Cut off what is after the end of the longest sequence."""
    if not len(stops):
        return tokens
    ended = torch.isin(tokens[:, prompt:], stops).cumsum(-1) > 0
    running = int((~ended).sum(-1).max())
    return tokens[:, : min(tokens.shape[1], prompt + running + 1)]


def _changed(choice: TokenChoice, drawing: dict[str, Any]) -> TokenChoice:
    known = [each.name for each in fields(TokenChoice)]
    unknown = sorted(set(drawing) - set(known))
    if unknown:
        raise SettingError(
            f"{unknown[0]} cannot be set here; a call takes max_new_tokens, {', '.join(known)}"
        )
    return replace(choice, **drawing)


def _check_ids(ids: Any, model: Any) -> None:
    if not isinstance(ids, torch.Tensor):
        raise DTypeError(f"prompts are a tensor of token ids, got {type(ids).__name__}")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise DTypeError(f"token ids are whole numbers, got {ids.dtype}")
    if ids.dim() != 2 or ids.numel() == 0:
        raise ShapeError(f"prompts are of shape (batch, length), got {tuple(ids.shape)}")
    homes = {each.device for each in model.parameters()}
    if len(homes) > 1:
        raise BackendError(f"the model lies on several devices: {sorted(map(str, homes))}")
    home = next(iter(homes), ids.device)
    if ids.device != home:
        raise BackendError(
            f'the prompts are on {ids.device}, the model is on {home}; move them with .to("{home}")'
        )
    words = vocabulary_size(model)
    if bool(((ids < 0) | (ids >= words)).any()):  # a device would be lost to such an index
        raise TokenError(
            f"token ids are from 0 to {words - 1}, got {int(ids.min())} to {int(ids.max())}"
        )


def _seen(mask: Any, ids: torch.Tensor) -> torch.Tensor:
    if not isinstance(mask, torch.Tensor):
        raise DTypeError(f"a mask is a tensor of zeros and ones, got {type(mask).__name__}")
    if mask.shape != ids.shape:
        raise ShapeError(f"the mask is {tuple(mask.shape)}, the prompts are {tuple(ids.shape)}")
    seen = mask.to(ids.device) != 0
    if not bool(seen[:, -1].all()) or bool((seen[:, 1:] < seen[:, :-1]).any()):
        raise SettingError("shorter prompts are padded on the left: the mask must end with ones")
    return seen


def _weights(model: Any) -> tuple[Any, ...]:
    """Give what changes when weights are moved, converted or replaced, but not when updated."""
    # Not buffers: some models put new ones in their place while they run.
    held = model.parameters()
    return tuple((id(each), each.dtype, each.device, _address(each)) for each in held)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # packed weights are several tensors
        return 0

"""One batch being generated: buffers that stay in place, and the step that moves them on.

Nothing in a step waits for the device or asks it anything, so the whole step, from a token to the
next one, can be captured once and replayed.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from tinytorch.adapters.pytorch_capture import Captured, capture
from tinytorch.adapters.pytorch_compile import why_it_failed
from tinytorch.errors import ModelError
from tinytorch.perf.memoization.decode_attention_torch import decoding_attention
from tinytorch.perf.memoization.decode_check_torch import check_step
from tinytorch.perf.memoization.decode_graph_torch import decode_backend
from tinytorch.perf.memoization.static_cache_torch import preallocated_cache
from tinytorch.perf.memoization.token_choice_torch import TokenChoice
from tinytorch.workloads.preparation import Preparation

__all__ = ["DecodeSession", "SessionSettings"]

MOST_PROMPTS = 8
"""So many lengths of prompts are captured; others are read step by step of the program."""
LEAST_LENGTH = 16
"""Checking, compiling and capturing take some steps, for which there must be room."""


@dataclass(frozen=True)
class SessionSettings:
    """What a session is made for; another batch, length or way of choosing is another session.

    `cast` is what autocast computes in, None where it is off.
    """

    batch: int
    length: int
    choice: TokenChoice
    stops: tuple[int, ...] = ()
    pad: int = 0
    is_ragged: bool = False
    compile: bool = True
    capture: bool = True
    cast: torch.dtype | None = None


class DecodeSession:
    """The buffers and the step for one batch.

    After `prepare`, inside of `running`: `read` a prompt, then `step` for every further token; the
    text is in `tokens`.
    """

    def __init__(self, model: Any, settings: SessionSettings, device: torch.device) -> None:
        self.model, self.settings, self.device = model, settings, device
        batch, length = settings.batch, max(settings.length, LEAST_LENGTH)
        heads = getattr(model.config.get_text_config(), "num_attention_heads", 0)
        counters = batch * heads if isinstance(heads, int) else 0
        self.state = torch.zeros(1 + counters, dtype=torch.int64, device=device)
        self.cache = preallocated_cache(model, length, self.state)
        self.tokens = torch.zeros((batch, length), dtype=torch.int64, device=device)
        self.token = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        self.positions = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        self.mask = torch.ones((batch, length), dtype=torch.bool, device=device)
        self.is_done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.stops = torch.tensor(settings.stops, dtype=torch.int64, device=device)
        self.preparations: list[Preparation] = []
        self.notes: list[str] = []
        self._prompts: dict[int, Captured | None] = {}
        self._compiled: Callable[[], Any] | None = None
        self._captured: Captured | None = None
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @property
    def cache_bytes(self) -> int:
        """The bytes of keys and values that are held."""
        layers = [each for each in self.cache.layers if each.is_initialized]
        return sum(each.keys.nbytes + each.values.nbytes for each in layers)

    # ------------------------------------------------------------ the prompt

    def read(self, ids: torch.Tensor, seen: torch.Tensor) -> None:
        """Put a prompt into the cache, and choose the first token after it."""
        length = ids.shape[1]
        self._begin(ids, seen)
        if self._captured and length not in self._prompts and len(self._prompts) < MOST_PROMPTS:
            self._capture_prompt(length)
            self._begin(ids, seen)
        captured = self._prompts.get(length)
        if captured is None:
            self._advance(self.read_scores(length))
        else:
            captured.replay()

    def _begin(self, ids: torch.Tensor, seen: torch.Tensor) -> None:
        length = ids.shape[1]
        self.is_done.zero_()
        self.mask.fill_(True)
        self.mask[:, :length] = seen
        self.tokens.fill_(self.settings.pad)
        self.tokens[:, :length] = ids

    def read_scores(self, length: int) -> torch.Tensor:
        """Read the first tokens into the cache, and give the scores of what follows."""
        seen = self.mask[:, :length]
        positions = (seen.long().cumsum(-1) - 1).clamp_min(0)
        for layer in self.cache.layers:
            layer.prompt_length = length
        try:
            scores: torch.Tensor = self.model(
                input_ids=self.tokens[:, :length],
                attention_mask=seen if self.settings.is_ragged else None,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                **self._last_only,
            ).logits[:, -1]
        finally:
            for layer in self.cache.layers:
                layer.prompt_length = 0
        self.state[:1].fill_(length - 1)
        self.positions.copy_(positions[:, -1:])
        return scores

    # ------------------------------------------------------------ the step

    def next_scores(self) -> torch.Tensor:
        """Give the scores of what follows the newest token."""
        scores: torch.Tensor = self.model(
            input_ids=self.token,
            attention_mask=self.mask if self.settings.is_ragged else None,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        return scores

    def _advance(self, scores: torch.Tensor) -> None:
        """Choose a token, write it down, and move everything on by one."""
        token = self.settings.choice(scores)
        if self.settings.stops:
            token = token.masked_fill(self.is_done, self.settings.pad)
            self.is_done.logical_or_(torch.isin(token, self.stops))
        self.put(token)

    def put(self, token: torch.Tensor) -> None:
        """Write one token for every sequence down; it is the newest one now."""
        self.state[:1].add_(1)
        self.positions.add_(1)
        self.tokens.index_copy_(1, self.state[:1], token[:, None])
        self.token.copy_(token[:, None])

    def _step(self) -> None:
        """Compute one token for every sequence, by the program."""
        if self._compiled is None:
            self._advance(self.next_scores())
        elif self.settings.choice.do_sample:
            self._advance(self._compiled())
        else:
            self._compiled()

    def step(self) -> None:
        """Compute one token for every sequence."""
        if self._captured is None:
            self._step()
        else:
            self._captured.replay()

    # ------------------------------------------------------------ compiling and capturing

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run without a graph, and attend by our kernel where there is one."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.device.type == "cuda" and self.settings.compile:
                stack.enter_context(decoding_attention(self.model, self.state))
            yield

    def prepare(self) -> None:
        """Check the step, then compile and capture it as far as that works; the rest is noted.

        Raises ModelError if the model gives other scores with this cache than with its own.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            check_step(self)
            self._make_fast()

    def _make_fast(self) -> None:
        with self.running():
            if self.settings.compile:
                self._rewind()
                self._compile()
            if self.settings.capture and self.device.type == "cuda":
                self._rewind()
                self._capture()

    def close(self) -> None:
        """Let go of everything that is held on the device; the session cannot be used again."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        # A compiled step refers to its session, so nothing would go by itself.
        self._compiled = self._captured = None
        self._prompts.clear()
        self.cache.layers.clear()

    def _rewind(self) -> None:
        """Make room: the steps to come begin after a prompt of one token."""
        first = torch.zeros_like(self.token)
        self._begin(first, torch.ones_like(first, dtype=torch.bool))
        self._advance(self.read_scores(1))

    def _compile(self) -> None:
        started = perf_counter()
        does_all = not self.settings.choice.do_sample
        traced = _with_code_of_its_own(self._whole_step if does_all else self.next_scores)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch imports and calls what it has deprecated
                backend = decode_backend(self.device.type)
                self._compiled = torch.compile(traced, backend=backend, dynamic=False)
                self._step()
        except Exception as error:  # whatever a compiler raises: the plain step still works
            self._compiled = None
            self.notes.append(f"the step could not be compiled ({why_it_failed(error)})")
            return
        self._prepared("compiled", perf_counter() - started)

    def _whole_step(self) -> None:
        self._advance(self.next_scores())

    def _capture(self) -> None:
        try:
            self._captured = capture(self._step, device=self.device)
        except ModelError as error:
            self.notes.append(f"the step could not be captured ({error})")
            return
        self._prepared("captured", self._captured.seconds, self._captured.nbytes)

    def _capture_prompt(self, length: int) -> None:
        """Capture how a prompt of this length is read; where that fails, the program reads it."""

        def read() -> None:
            self._advance(self.read_scores(length))

        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                done = self._prompts[length] = capture(read, device=self.device)
            except ModelError as error:
                self._prompts[length] = None
                self.notes.append(f"reading the prompt could not be captured ({error})")
                return
        self._prepared("captured", done.seconds, done.nbytes)

    def _prepared(self, what: str, seconds: float, nbytes: int | None = None) -> None:
        """Note what was done once; prompts are captured one by one, and counted together."""
        known = {each.what: each for each in self.preparations}
        before = known.get(what)
        if before is not None:
            seconds += before.seconds
            nbytes = None if nbytes is None else nbytes + (before.nbytes or 0)
        known[what] = Preparation(what, seconds, nbytes)
        self.preparations[:] = known.values()


def _with_code_of_its_own(method: Callable[[], Any]) -> Callable[[], Any]:
    """Give a method with a copy of its code: the compiler allows few versions of each code."""
    function = method.__func__  # type: ignore[attr-defined]
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return types.MethodType(copied, method.__self__)  # type: ignore[attr-defined]

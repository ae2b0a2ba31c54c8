"""Planning and carrying out StaticGeneration for models of transformers. Imported after torch."""

from __future__ import annotations

import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from tinytorch.errors import (
    BackendError,
    DTypeError,
    ModelError,
    SettingError,
    ShapeError,
    TokenError,
    first_line,
)
from tinytorch.measure.timing import time_limit
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_capture import Captured, capture
from tinytorch.models.pytorch_compile import why_it_failed
from tinytorch.models.pytorch_tensors import WrappedModel, why_no_module
from tinytorch.models.workload import Preparation, Workload, while_planning
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.static_generation import generation
from tinytorch.transforms.static_generation.cache import (
    decoding_attention,
    preallocated_cache,
    why_no_cache,
)
from tinytorch.transforms.static_generation.decode_graph import decode_backend

if TYPE_CHECKING:
    from tinytorch.transforms.static_generation import StaticGeneration


# ---------------------------------------------------------------- checking a preallocated cache:
# the model must score tokens with it as with its own cache
#
# Not every model that takes such a cache uses it well: one that derives a window from how long the
# cache is would see other tokens, without an error.

PROMPT, STEPS = 4, 3
ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-8, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far scores may move with the order of computing, relative to the largest."""


def check_step(session: DecodeSession) -> None:
    """Read a short text with the session's cache and with the model's own; compare the scores.

    Rounding may move single scores far (where experts are chosen), so the best of some steps
    counts; a mistake shows in all of them. Raises ModelError if the scores are different, or if the
    model cannot be called with that cache.
    """
    text, seen = _text(session)
    with torch.no_grad():
        expected = _scores_expected(session, text, seen)
    try:
        with session.running():
            found = _scores_found(session, text, seen)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model raises that expects a cache of another kind
        raise ModelError(
            f"{type(session.model).__name__} fails with a preallocated cache "
            f"({first_line(error)}): it does not support such a cache"
        ) from error
    largest = expected.float().abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
    apart = (found - expected).float().abs().amax(-1) / largest
    worst = float(apart.amin(0).max())  # (steps, batch): the best step of the worst row
    if not worst <= ALLOWED.get(found.dtype, ALLOWED[torch.bfloat16]):
        raise ModelError(
            f"{type(session.model).__name__} gives other scores with a preallocated cache than "
            f"with its own (by {worst:.2g} of the largest one): it does not support such a cache"
        )


def _text(session: DecodeSession) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length = session.settings.batch, PROMPT + STEPS
    rows = torch.arange(batch, device=session.device)[:, None]
    places = torch.arange(length, device=session.device)[None, :]
    words = generation.vocabulary_size(session.model)
    seen = torch.ones((batch, PROMPT), dtype=torch.bool, device=session.device)
    if session.settings.is_ragged:
        seen[::2, 0] = False
    return (5 * rows + 3 * places + 1) % words, seen


def _scores_found(session: DecodeSession, text: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return the scores after each token of the text from the end of the prompt on."""
    session.mask.fill_(True)
    session.mask[:, :PROMPT] = seen
    session.tokens[:, :PROMPT] = text[:, :PROMPT]
    session.read_scores(PROMPT)
    scores = []
    for place in range(PROMPT, text.shape[1]):
        session.put(text[:, place])
        scores.append(session.next_scores())
    return torch.stack(scores)


def _scores_expected(
    session: DecodeSession, text: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    mask = torch.ones_like(text)
    mask[:, :PROMPT] = seen
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache: Any = None
    scores = []
    for begin, end in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, text.shape[1]))]:
        output = session.model(
            input_ids=text[:, begin:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, begin:end],
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        if begin:
            scores.append(output.logits[:, -1])
    return torch.stack(scores)


# ---------------------------------------------------------------- one batch being generated:
# buffers that stay in place, and the step that moves them on
#
# Nothing in a step waits for the device or asks it anything, so the whole step, from a token to the
# next one, can be captured once and replayed.

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
    choice: generation.TokenChoice
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
        """Process a prompt, and choose the first token after it."""
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
        """Return the scores of what follows the newest token."""
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
        """Release everything that is held on the device; the session cannot be used again."""
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
    """Return a method with a copy of its code: the compiler allows few versions of each code."""
    function = method.__func__  # type: ignore[attr-defined]
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return types.MethodType(copied, method.__self__)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- StaticGenerator: text from a
# decoder of transformers, with a preallocated cache

ROUNDED_TO = 64
"""Caches have lengths that are multiples of this, so that few of them serve many requests."""
LOOK_EVERY = 16
"""How many tokens are generated between checks whether all sequences have ended: each waits."""
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
        choice: generation.TokenChoice | None = None,
        length: int | None = None,
        compile: bool = True,
        capture: bool = True,
    ) -> None:
        reason = why_no_generator(model)
        if reason:
            raise ModelError(f"no generation with a preallocated cache: {reason}")
        generation.check_new_tokens(max_new_tokens)
        super().__init__(model)
        self.max_new_tokens = max_new_tokens
        self.choice = choice or generation.TokenChoice()
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
        """Return the prompts and the tokens after them, like `model.generate` of transformers.

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
        self, ids: torch.Tensor, seen: torch.Tensor, new: int, choice: generation.TokenChoice
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
        self, ids: torch.Tensor, seen: torch.Tensor, new: int, choice: generation.TokenChoice
    ) -> SessionSettings:
        needed = ids.shape[1] + new
        stops, pad = generation.special_tokens(self.model)
        kind = ids.device.type
        return SessionSettings(
            batch=ids.shape[0],
            length=self.length or -(-needed // ROUNDED_TO) * ROUNDED_TO,
            choice=choice if choice.do_sample else generation.TokenChoice(),
            stops=stops,
            pad=pad,
            is_ragged=not bool(seen.all()),
            compile=self.does_compile,
            capture=self.does_capture,
            cast=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        )

    # ------------------------------------------------------------ what is asked for

    def _checked(self, ids: Any, mask: Any, new: Any) -> torch.Tensor:
        """Return which tokens of a prompt count, all of them without a mask."""
        if any(each.training for each in self.model.modules()):
            raise ModelError(
                "the model is in training mode, in which layers such as dropout are random; call "
                "eval() first"
            )
        unlike = generation.unlike_settings(self.model)
        if unlike:
            raise ModelError(_asks_for_more(unlike))
        generation.check_new_tokens(new)
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
    """Return why a model cannot generate with a preallocated cache, or ""."""
    if isinstance(model, WrappedModel):
        name = type(model).__name__
        return f"it is a {name}, whose own way of calling would be lost; give the model in it"
    reason = why_no_cache(model) or why_no_module(model)
    unlike = {} if reason else generation.unlike_settings(model)
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


def _changed(choice: generation.TokenChoice, drawing: dict[str, Any]) -> generation.TokenChoice:
    known = [each.name for each in fields(generation.TokenChoice)]
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
    words = generation.vocabulary_size(model)
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
    """Return what changes when weights are moved, converted or replaced, but not when updated."""
    # Not buffers: some models put new ones in their place while they run.
    held = model.parameters()
    return tuple((id(each), each.dtype, each.device, _address(each)) for each in held)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # packed weights are several tensors
        return 0


# ---------------------------------------------------------------- planning and carrying out
# StaticGeneration for models of transformers. Imported after torch


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
        return settings.skipping(reason)
    generator = None
    try:
        with TorchAdapter().preserving(workload.model), time_limit(settings.limit_s, workload.name):
            copy = TorchAdapter().clone(workload.model)
            generator = _generator(copy, settings, choice=generation.TokenChoice())
            found = _call(workload, generator)
            notes = tuple(_notes(workload, generator, found))
            done = dict.fromkeys(each.what for each in generator.preparations)
            spent = while_planning(generator.preparations).to_dict()
    except Exception as error:  # a compiler, a device or the model may raise anything
        return settings.skipping(first_line(error))
    finally:
        if generator is not None:
            generator.release()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    what = "keys and values allocated once" + "".join(f", the step {each}" for each in done)
    return settings.planned(
        (Step("", what, WHY, {"planning": spent}),),
        not_predicted=NOT_PREDICTED,
        notes=notes,
    )


def apply_torch(
    model: generation.Generation, workload: Workload, plan: Plan, settings: StaticGeneration
) -> StaticGenerator:
    """Return a generator that has generated for the workload's inputs once."""
    generator = _generator(model, settings, choice=model.choice)
    spent = Preparation.from_dict(plan.steps[0].settings["planning"])
    generator.planning = (spent,) if spent.seconds else ()
    with TorchAdapter().preserving(workload.model), time_limit(settings.limit_s, workload.name):
        _call(workload, generator)
    return generator


def _generator(
    model: generation.Generation, settings: StaticGeneration, *, choice: generation.TokenChoice
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
    """Return what it costs, and whether the tokens are the same; raise if they should be."""
    for done in generator.preparations:
        held = "" if done.nbytes is None else f", {done.nbytes / 2**20:.3g} MiB stay taken for it"
        yield f"{done.what} once in {done.seconds:.2g} s{held}"
    yield f"the cache holds {generator.cache_bytes / 2**20:.3g} MiB all the time"
    yield from generator.notes
    decoder = generator.model
    own = generation.Generation(
        decoder, max_new_tokens=generator.max_new_tokens, choice=generation.TokenChoice()
    )
    expected = _call(workload, own)
    ids, mask = generation.prompts_of(workload.inputs, workload.keywords)
    prompt = ids.shape[1]
    parted = generation.explain_divergence(decoder, expected, found, prompt, mask)
    for each in parted:
        if not each.is_rounding:
            raise ModelError(f"the tokens are not those of generate(): {each}")
        yield str(each)
    if not parted:
        yield f"all {found[:, prompt:].numel()} new tokens are those of generate()"

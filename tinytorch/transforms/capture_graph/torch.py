"""Capturing PyTorch models as CUDA graphs: tried before it is promised. Imported after torch."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytorch.errors import ModelError, TinyTorchError
from tinytorch.models.adapter import leaves
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_capture import Captured, capture, why_not_captured
from tinytorch.models.pytorch_compile import compiled, why_no_compiler
from tinytorch.models.pytorch_tensors import HOOKS, PreparedModel
from tinytorch.models.workload import Preparation, Workload, while_planning
from tinytorch.transforms.compile_model.torch import preparation_notes, rounding_of
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support import torch as support

if TYPE_CHECKING:
    from tinytorch.transforms.capture_graph import CaptureGraph


# ---------------------------------------------------------------- a PyTorch model whose calls were
# captured as CUDA graphs. Imported after torch

BACKEND = "inductor"
RENEWALS, REPLAYS_EACH = 8, 100
"""So often may everything be captured anew, and once more for so many replays."""


@dataclass(frozen=True)
class _Recording:
    """One captured call: where its inputs are put, and what it gives."""

    statics: list[torch.Tensor]
    captured: Captured
    output: support.OutputTemplate
    weights: support.SameWeights


class _StaticInputs:
    """Arguments in memory of their own, from which every replay reads them."""

    def __init__(self, inputs: Any, keywords: Mapping[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self._originals: list[torch.Tensor] = []
        self.inputs, self.keywords = support.changed_tensors((inputs, dict(keywords)), self._copied)
        self._parts = self._leaves()
        self._versions = [each._version for each in self.tensors]

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        self._originals.append(tensor)
        self.tensors.append(tensor.detach().clone())
        return self.tensors[-1]

    def _leaves(self) -> list[Any]:
        return list(leaves((self.inputs, self.keywords)))

    def are_written(self) -> bool:
        """Return whether a call has written to tensors, lists or dictionaries among them."""
        return (
            [*map(id, self._leaves())] != [*map(id, self._parts)]
            or [each._version for each in self.tensors] != self._versions
            or not all(map(_is_same, self._originals, self.tensors))
        )

    def forget_originals(self) -> None:
        """Release references to the caller's objects."""
        self._originals.clear()


class CapturedModel(PreparedModel):
    """A model that replays what a call with such arguments did on the device before.

    Whatever cannot be replayed is called normally: in training mode, where gradients are asked
    for, with inputs on another device or of a kind that came after `most` others. Weights may be
    written in place; if layers or tensors take the place of others, everything is captured anew.
    What Python decides is not checked again: numbers among the attributes of layers, settings of
    torch such as the precision of products, and hooks that come after the capture. A copy of it is
    captured when it is first called.

    One call runs after the other, whatever the thread or the stream.
    """

    not_copied = ("preparations", "_call", "_kinds", "_layers", "_told", "_turn", "_last_stream")

    def __init__(
        self, model: nn.Module, *, compile: bool = False, copy_outputs: bool = True, most: int = 8
    ) -> None:
        super().__init__(model)
        self._settings = {"compile": compile, "copy_outputs": copy_outputs}
        self._most = most
        self._set_up()

    def _set_up(self) -> None:
        self._told: set[str] = set()
        self._turn = RLock()
        self._last_stream: Any = None
        self._kinds: dict[Hashable, _Recording | None] = {}
        self._device: torch.device | None = None
        self._renewals = self._replays = 0
        self._forget()

    def _forget(self) -> None:
        """Forget whatever was captured."""
        if self._kinds:
            torch.cuda.synchronize(self._device)  # it may be running
        self.preparations: tuple[Preparation, ...] = ()
        self._kinds = {}
        self._layers = list(self.model.modules())
        held = next(chain(self.model.parameters(), self.model.buffers()), None)
        self._device = None if held is None else held.device
        self._no_graphs: str | None = None  # the reason why this device has none, once known
        is_compiled = self._settings["compile"]
        self._call = compiled(self.model, backend=BACKEND) if is_compiled else self.model.__call__
        # Tells other transforms that the layers inside must not be changed.
        self._compiled_call_impl = self._call_impl

    def prepare(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> CapturedModel:
        """Capture a call with such arguments, and give the model itself; its state stays."""
        tensors: list[torch.Tensor] = []
        with torch.no_grad():
            kind = self._kind(inputs, keywords, tensors)
            reason = self._why_not_replayed(tensors)
            if reason:
                raise ModelError(f"the model cannot be captured: {reason}")
            self._kinds[kind] = self._record(inputs, keywords)
        return self

    # ------------------------------------------------------------ calling it

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Replay the call, or call the model."""
        if torch.compiler.is_compiling():  # it cannot be replayed inside of something else's graph
            return self.model(*inputs, **keywords)
        tensors: list[torch.Tensor] = []
        try:
            kind = self._kind(inputs, keywords, tensors)
        except support.UnknownArgumentError as error:
            return self._plainly(str(error), inputs, keywords)
        with self._turn:
            self._forget_if_changed(kind)
            reason = self._why_not_replayed(tensors)
            if not reason:
                self._wait_for_last()
                recording = self._recording(kind, inputs, keywords)
                if recording is not None:
                    return self._replayed(recording, tensors)
        return self._plainly(reason, inputs, keywords)

    def _forget_if_changed(self, kind: Hashable) -> None:
        """Begin anew if what a graph reads is not what the model has; not for ever, though."""
        known = self._kinds.get(kind)
        if known is None or known.weights.still_hold():
            return
        self._forget()
        self._renewals += 1
        if self._renewals > RENEWALS + self._replays / REPLAYS_EACH:
            self._no_graphs = "its layers get other tensors again and again, which a graph does not"

    def _kind(self, inputs: Any, keywords: Any, tensors: list[torch.Tensor]) -> Hashable:
        casts = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        return (casts, support.kind_of_arguments((inputs, dict(keywords)), tensors))

    def _why_not_replayed(self, tensors: list[torch.Tensor]) -> str:
        if self.training or any(map(attrgetter("training"), self._layers)):
            return "it is in training mode"
        self._device = self._device or (tensors[0].device if tensors else torch.device("cpu"))
        if any(tensor.device != self._device for tensor in tensors):
            return f"an input is not on {self._device}"
        if torch.is_grad_enabled() and (
            any(tensor.requires_grad for tensor in tensors)
            or any(each.requires_grad for each in self.model.parameters())
        ):
            return "gradients are asked for; call it inside of torch.no_grad()"
        if _is_transforming():
            return "a transformation of torch.func traces it"
        if _is_capturing(self._device):
            return "it is being captured by something else"
        if self._no_graphs is None:
            self._no_graphs = why_not_captured(self._device)
        return self._no_graphs

    def _plainly(self, reason: str, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if reason:  # else that was told already
            self._tell(f"the captured model is called without replay: {reason}")
        return self.model(*inputs, **keywords)

    def _replayed(self, recording: _Recording, tensors: list[torch.Tensor]) -> Any:
        with torch.no_grad():
            for static, tensor in zip(recording.statics, tensors, strict=True):
                static.copy_(tensor)
            output = recording.captured.replay()
            self._replays += 1
            return recording.output.copied() if self._settings["copy_outputs"] else output

    # ------------------------------------------------------------ capturing it

    def _recording(self, kind: Hashable, inputs: Any, keywords: Any) -> _Recording | None:
        """Return what was captured for such arguments, now if need be; None where it cannot be."""
        if kind in self._kinds:
            return self._kinds[kind]
        if len(self._kinds) >= self._most:
            self._tell(
                f"arguments of more than {self._most} kinds came; further ones are not captured"
            )
            return None
        try:
            self._kinds[kind] = self._record(inputs, keywords)
        except ModelError as error:
            self._kinds[kind] = None
            self._tell(f"a call of another kind was not captured: {error}")
        return self._kinds[kind]

    def _record(self, inputs: Any, keywords: Mapping[str, Any]) -> _Recording:
        adapter = TorchAdapter()
        weights: list[support.SameWeights] = []

        def step() -> Any:
            # What is there when the last of these calls begins is what the graph reads.
            weights[:] = [support.SameWeights(self.model, also_numbers=False)]
            return self._call(*static.inputs, **static.keywords)

        with torch.inference_mode(False), torch.no_grad(), adapter.preserving(self.model):
            static = _StaticInputs(inputs, keywords)
            buffers = _buffers(self.model)
            pool = next((each.captured.pool for each in self._kinds.values() if each), None)
            assert self._device is not None
            with warnings.catch_warnings():
                if self._settings["compile"]:
                    warnings.simplefilter("ignore")  # they are about torch's own code
                captured = capture(step, device=self._device, pool=pool)
            _check_buffers(buffers, _buffers(self.model))
            if static.are_written():
                raise ModelError("the model writes to its inputs, and a graph would to copies")
        static.forget_originals()  # which the step, and so the graph, would keep alive
        weights[0].ignore_what_changed()
        nbytes = captured.nbytes + sum(each.untyped_storage().nbytes() for each in static.tensors)
        self.preparations += (Preparation("captured", captured.seconds, nbytes),)
        return _Recording(
            static.tensors, captured, support.OutputTemplate(captured.output), weights[0]
        )

    def _wait_for_last(self) -> None:
        """Make this stream wait for that of the previous call: both use the same memory."""
        if self._device is None or self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        if self._last_stream is not None and self._last_stream != stream:
            stream.wait_stream(self._last_stream)
        self._last_stream = stream

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(what, RuntimeWarning, stacklevel=2)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _is_transforming() -> bool:
    is_active: Any = getattr(torch._C, "_are_functorch_transforms_active", None)
    return is_active is not None and bool(is_active())


def _buffers(model: nn.Module) -> dict[str, int]:
    return {name: id(each) for name, each in model.named_buffers()}


def _check_buffers(before: dict[str, int], after: dict[str, int]) -> None:
    replaced = [name for name, each in after.items() if before.get(name, each) != each]
    if replaced:
        raise ModelError(
            f"the model puts another tensor instead of its buffer {replaced[0]!r}; a "
            "graph sees only what is written in place, as by copy_()"
        )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype.itemsize == 1:  # not all of these can be compared
        one, other = (each.contiguous().view(torch.uint8) for each in (one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is NaN


# ---------------------------------------------------------------- capturing PyTorch models as CUDA
# graphs: tried before it is promised. Imported after torch

NOT_PREDICTED = {
    "speedup": "it saves the time between kernels, which depends on their number and size; "
    "compare() measures it",
    "shrinkage": "the same parameters are held",
}
WRITES_INPUTS = (
    "it writes to its inputs, and a graph would write to copies of them; let it write elsewhere"
)
DRAWS = "it draws random numbers, which other calls would draw in another order; call eval() on it"
HOOKED = "its hooks run while it is captured, and not when that is replayed"
OVERWRITTEN = "outputs are overwritten by the next call (copy_outputs=False)"


def plan_torch(workload: Workload, settings: CaptureGraph) -> Plan:
    """Plan the capture: check for obstacles, capture a copy and compare its outputs."""
    reason = _why_not(workload)
    if reason:
        return settings.skipping(reason)
    prepared: list[Preparation] = []
    trial, is_compiled, notes = _tried(workload, settings, prepared)
    if not trial.works:
        return settings.skipping(support.refusal(workload.model, trial))
    what = "compiled, then captured as a CUDA graph" if is_compiled else "captured as a CUDA graph"
    why = "all kernels of a call are started at once"
    spent = while_planning(prepared).to_dict()
    step = Step("", what, why, {"compile": is_compiled, "planning": spent})
    notes = [*preparation_notes(trial, prepared), *notes]
    if not settings.copy_outputs:
        notes.append(OVERWRITTEN)
    if _has_hooks(workload.model):
        notes.append(HOOKED)
    return settings.planned((step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: CaptureGraph
) -> CapturedModel:
    """Return a copy of the model that was captured for the workload's inputs."""
    tried = plan.steps[0].settings
    twin = _captured(model, workload, settings, tried["compile"])
    twin.preparations += (Preparation.from_dict(tried["planning"]),)
    return twin


def _captured(
    model: nn.Module, workload: Workload, settings: CaptureGraph, is_compiled: bool
) -> CapturedModel:
    twin = CapturedModel(
        model, compile=is_compiled, copy_outputs=settings.copy_outputs, most=settings.most
    )
    return twin.prepare(workload.inputs, workload.keywords)


def _tried(
    workload: Workload, settings: CaptureGraph, prepared: list[Preparation]
) -> tuple[support.Trial, bool, list[str]]:
    """Try it compiled if requested; without compilation otherwise, or if that fails."""
    tolerance = rounding_of(workload) if settings.tolerance is None else settings.tolerance

    def tried(*, is_compiled: bool) -> support.Trial:
        def change(model: nn.Module) -> nn.Module:
            twin = _captured(model, workload, settings, is_compiled)
            prepared[:] = twin.preparations
            return twin

        return support.try_change(workload, change, tolerance=tolerance, limit_s=settings.limit_s)

    if not settings.compile:
        return tried(is_compiled=False), False, []
    reason = why_no_compiler(workload.device)
    if not reason:
        trial = tried(is_compiled=True)
        if trial.works:
            return trial, True, []
        reason = trial.reason
    return tried(is_compiled=False), False, [f"captured without torch.compile: {reason}"]


# ---------------------------------------------------------------- what is known before


def _why_not(workload: Workload) -> str:
    reason = support.why_unchangeable(workload.model)
    if reason:
        return reason
    try:
        place = workload.device
        support.kind_of_arguments((workload.inputs, dict(workload.keywords)), [])
    except support.UnknownArgumentError as error:
        return f"{error}; a graph is for tensors, numbers and words"
    except TinyTorchError as error:
        return str(error)
    return next((each for each in _reasons(workload, place) if each), "")


def _reasons(workload: Workload, place: str) -> Iterator[str]:
    yield why_not_captured(place)
    if any(module.training for module in workload.model.modules()):
        yield support.IN_TRAINING
    seen = support.observe_call(workload)
    yield seen.error
    yield WRITES_INPUTS if seen.writes_inputs else ""
    yield DRAWS if _draws_numbers(workload, place) else ""


def _draws_numbers(workload: Workload, place: str) -> bool:
    """Return whether a call moves a random generator on."""
    adapter = TorchAdapter()
    with adapter.preserving(workload.model):
        support.run_once(adapter, workload, adapter.clone(workload.model))
        after = _random_states(torch.device(place))
        torch.manual_seed(support.SEED)
        before = _random_states(torch.device(place))
    return any(not torch.equal(*states) for states in zip(before, after, strict=True))


def _has_hooks(model: nn.Module) -> bool:
    return any(getattr(module, name, None) for module in model.modules() for name in HOOKS)


def _random_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])

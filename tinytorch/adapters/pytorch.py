"""The adapter for PyTorch models, on CPU and CUDA. Imported only after torch was."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

import torch

from tinytorch.adapters.adapter import Adapter, ParameterSpec, Step
from tinytorch.adapters.pytorch_recorder import Resident, hold_back, record_step
from tinytorch.adapters.records import Recording
from tinytorch.errors import BackendError, GraphError, SettingError

__all__ = ["TorchAdapter", "holds_torch_module", "tensors_in"]

OPTIMIZERS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


class TorchAdapter(Adapter):
    """`torch.nn.Module`, and objects with a `forward` that have such modules inside."""

    name = "pytorch"

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    # ------------------------------------------------------------ the model

    def modules(self, model: Any) -> dict[str, Any]:
        if isinstance(model, torch.nn.Module):
            return dict(model.named_modules())
        found: dict[str, Any] = {"": model}
        for name, value in _inner_modules(model):
            found |= dict(value.named_modules(prefix=name))
        return found

    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        return tuple(
            ParameterSpec(
                name=name,
                path=name.rpartition(".")[0],
                size=tensor.numel(),
                nbytes=tensor.numel() * tensor.element_size(),
                is_trainable=tensor.requires_grad,
                is_buffer=is_buffer,
            )
            for name, tensor, is_buffer in self._tensors(model)
        )

    def _tensors(self, model: Any) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield every parameter and buffer once, under its first name."""
        seen: set[int] = set()
        for path, module in self.modules(model).items():
            if not isinstance(module, torch.nn.Module):
                continue
            prefix = f"{path}." if path else ""
            own = [
                (module.named_parameters(recurse=False), False),
                (module.named_buffers(recurse=False), True),
            ]
            for pairs, is_buffer in own:
                for name, tensor in pairs:
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield prefix + name, tensor, is_buffer

    def device(self, model: Any, inputs: tuple[Any, ...]) -> str:
        homes: dict[str, str] = {}
        for name, tensor, _ in self._tensors(model):
            homes.setdefault(str(tensor.device), name)
        given = {str(tensor.device) for tensor in tensors_in(inputs)}
        if len(homes) > 1:
            places = ", ".join(f"{name} on {home}" for home, name in homes.items())
            raise BackendError(f"the model lies on several devices ({places}); profile one part")
        home = next(iter(homes), None) or next(iter(sorted(given)), "cpu")
        # Single numbers may stay on the CPU; everything else must be where the model is.
        strays = [t for t in tensors_in(inputs) if t.dim() and str(t.device) != home]
        if strays:
            shape = tuple(strays[0].shape)
            raise BackendError(
                f"an input {shape} is on {strays[0].device}, the model is on {home}; "
                f'move it with .to("{home}")'
            )
        return home

    def clone(self, model: Any) -> Any:
        return copy.deepcopy(model)

    # ------------------------------------------------------------ running it

    def without_gradients(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    @contextmanager
    def preserving(self, model: Any, *, parameters: bool = False) -> Iterator[None]:
        tensors = [
            (tensor, tensor.grad, _copied(tensor) if parameters or is_buffer else None)
            for _, tensor, is_buffer in self._tensors(model)
        ]
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        for tensor, _, _ in tensors:
            tensor.grad = None
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count())) if cuda else []):
            try:
                yield
            finally:
                for tensor, grad, values in tensors:
                    tensor.grad = grad
                    if values is not None:
                        with torch.no_grad():
                            tensor.copy_(values)

    def scalar_loss(self, output: Any) -> torch.Tensor:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
            return loss
        tensors = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        if not tensors:
            raise GraphError(
                f"the output ({type(output).__name__}) holds no tensor with a graph, so there is "
                "nothing to run a backward pass from"
            )
        return torch.stack([tensor.float().sum() for tensor in tensors]).sum()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def make_optimizer(self, model: Any, name: str) -> torch.optim.Optimizer:
        if name not in OPTIMIZERS:
            raise SettingError(f"unknown optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
        return OPTIMIZERS[name]([t for _, t, _ in self._tensors(model) if t.requires_grad])

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def drop_gradients(self, model: Any) -> None:
        for _, tensor, _ in self._tensors(model):
            tensor.grad = None

    def example(self, shape: tuple[int, ...], model: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        modules = self.modules(model).values()
        sizes = [m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding)]
        home = next((tensor for _, tensor, _ in self._tensors(model)), torch.empty(0))
        if sizes and len(shape) <= 2:
            ids = torch.randint(0, min(sizes), shape, generator=generator)
            return ids.to(home.device)
        dtype = home.dtype if home.is_floating_point() else torch.float32
        return torch.randn(shape, generator=generator).to(home.device, dtype)

    def digest(self, output: Any) -> tuple[float, ...]:
        dense = [t.detach() for t in tensors_in(output) if t.layout == torch.strided]
        return tuple(t.nansum(dtype=torch.float64).item() for t in dense if t.is_floating_point())

    # ------------------------------------------------------------ watching it

    def stamp(self, device: str) -> Callable[[], Any]:
        if not device.startswith("cuda"):
            return perf_counter
        stream = torch.cuda.current_stream(device)

        def mark() -> torch.cuda.Event:
            if self._used == len(self._events):
                self._events.append(torch.cuda.Event(enable_timing=True))
            event = self._events[self._used]  # making one costs more than recording it
            self._used += 1
            event.record(stream)
            return event

        return mark

    def forget_marks(self) -> None:
        self._used = 0

    def seconds(self, begin: Any, end: Any) -> float:
        if isinstance(begin, float):
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3

    def synchronize(self, device: str) -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    def hold_back(self, device: str, seconds: float) -> Callable[[], bool] | None:
        return hold_back(device, seconds) if device.startswith("cuda") else None

    def record(
        self,
        model: Any,
        step: Step,
        *,
        device: str,
        inputs: tuple[Any, ...] = (),
        optimizer: Any = None,
    ) -> Recording:
        residents: list[Resident] = [
            (tensor, "buffers" if is_buffer else "parameters", name.rpartition(".")[0])
            for name, tensor, is_buffer in self._tensors(model)
        ]
        residents += [(tensor, "inputs", None) for tensor in tensors_in(inputs)]
        if optimizer is not None:
            held = [tensors_in(dict(state)) for state in optimizer.state.values()]
            residents += [(t, "optimizer state", None) for group in held for t in group]
        learned = [tensor for _, tensor, is_buffer in self._tensors(model) if not is_buffer]
        return record_step(
            step,
            modules=self.modules(model),
            residents=residents,
            learned=learned,
            device=device,
        )


def holds_torch_module(model: Any) -> bool:
    """Tell whether a model is a PyTorch module, or an object that has one as an attribute."""
    return isinstance(model, torch.nn.Module) or any(True for _ in _inner_modules(model))


def _inner_modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules among the attributes of an object, or behind a bound method."""
    owner = getattr(model, "__self__", None)
    attributes = {"": owner} if owner is not None else getattr(model, "__dict__", {})
    for name, value in attributes.items():
        if isinstance(value, torch.nn.Module):
            yield name, value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Find the tensors in an output: in tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()

"""The lists of layers of PyTorch models, and what their configurations say. After torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from typing import Any

from torch import nn

from tinytorch.transforms.support.weights_torch import fit_config

LISTS = (nn.ModuleList, nn.Sequential)
COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
"""What configs call the number of layers."""


class TorchLists:
    """The items of `ModuleList` and `Sequential`, wherever these are in a module."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = dict(model.named_modules())
        self.items: dict[str, Any] = {}
        self.list_of: dict[str, str] = {}
        for path, module in self._modules.items():
            parent = path.rpartition(".")[0]
            if path and isinstance(self._modules[parent], LISTS):
                self.items[path], self.list_of[path] = module, parent

    def places(self, layer: Any) -> int:
        children = (each for module in self._modules.values() for each in module._modules.values())
        return sum(each is layer for each in children)

    def shorten(self, gone: Collection[str]) -> Callable[[], None]:
        """Remove layers; those behind them move up, in name and in `layer_idx`.

        By that number a layer of transformers finds its keys and values in a cache.
        """
        holders = {path: self._modules[path] for path in {self.list_of[path] for path in gone}}
        before = [(holder, dict(holder._modules)) for holder in holders.values()]
        numbers = [
            (module, module.__dict__["layer_idx"])
            for holder in holders.values()
            for module in holder.modules()
            if "layer_idx" in module.__dict__
        ]
        for path, holder in holders.items():
            _shorten(holder, {name for name in holder._modules if _joined(path, name) in gone})

        def put_back() -> None:
            for holder, children in before:
                holder._modules.clear()
                holder._modules.update(children)
            for module, number in numbers:
                module.__dict__["layer_idx"] = number

        return put_back

    def remove(self, gone: Collection[str]) -> str:
        """Remove layers permanently, and update the config of a model of transformers."""
        alternatives = list(_config_changes(self._model, gone))
        self.shorten(gone)
        return fit_config(self._model, *alternatives)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shorten(holder: nn.Module, gone: Collection[str]) -> None:
    kept = [(name, child) for name, child in holder._modules.items() if name not in gone]
    is_numbered = all(name.isdecimal() for name in holder._modules)
    old = list(holder._modules)
    holder._modules.clear()
    for number, (name, child) in enumerate(kept):
        holder._modules[str(number) if is_numbered else name] = child
        for module in child.modules() if child is not None else ():
            if module.__dict__.get("layer_idx") == old.index(name):
                module.__dict__["layer_idx"] = number


def _config_changes(model: nn.Module, paths: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what a config may have to say: fewer layers, and no entries for those that are gone."""
    config = getattr(model, "config", None)
    by_list: dict[str, list[int]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        names = list(model.get_submodule(parent)._modules)
        by_list.setdefault(parent, []).append(names.index(name))
    if len(by_list) > 1:
        yield {}
        return
    for parent, gone in by_list.items():
        count = len(model.get_submodule(parent)._modules)
        matching = [name for name in COUNTS if getattr(config, name, None) == count]
        lists = {
            name: [each for place, each in enumerate(value) if place not in gone]
            for name, value in getattr(config, "__dict__", {}).items()
            if isinstance(value, list) and len(value) == count and not name.startswith("_")
        }
        for size in range(1, len(matching) + 1):
            for chosen in combinations(matching, size):
                counts = dict.fromkeys(chosen, count - len(gone))
                yield {**counts, **lists}
                yield counts

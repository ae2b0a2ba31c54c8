"""One side of a comparison, in a separate process and environment.

Served by `measure/worker.py` as a file, in any Python that can import what the target needs: it
needs the standard library alone until it is told to build a target.
"""

import gc
import importlib
import importlib.util
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

PADS = 8
LARGEST_PAD = 1 << 17
DISPLACED_SHARE = 0.02
OTHERS_SHARE = 0.01
LOADERS = ("tinytorch.models.targets", "tinytorch.workloads.targets")
ADAPTERS = ("tinytorch.models.adapter", "tinytorch.adapters.adapter")
"""Where this version of tinytorch has something, and where older commits had it."""


class Worker:
    """What a request may ask for; `service` is that of the process around it."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def probe(self, target: str) -> dict[str, Any]:
        """Load a target, call it once, and say which files it takes its code from."""
        seen: dict[str, Any] = {"python": platform.python_version()}
        try:
            workload = load(target)
            function, context = runner(workload)
            with context:
                function()
            seen["has_evaluate"] = getattr(workload, "evaluate", None) is not None
        except BaseException as error:  # whatever a target does is an answer
            seen["error"] = type(error).__name__ + ": " + str(error)
            seen["is_missing"] = is_missing(target)
        seen["modules"] = imported_files()
        return seen

    def build(self, target: str) -> dict[str, object]:
        """Import a target and make what is to be timed."""
        self.pads = [
            bytearray(int(64 * (LARGEST_PAD / 64) ** random.random())) for _ in range(PADS)
        ]
        self.workload = load(target)
        function, self.context = runner(self.workload)
        self.context.__enter__()
        self.function = self.service.guarded(function)
        gc.collect()
        gc.disable()
        return {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "is_on_device": running_cuda() is not None,
        }

    def time(self, loops: int, before: int, one_by_one: bool = False) -> dict[str, float]:
        """Call the function, after some untimed calls; wait for each, or only for the last."""
        for _ in range(before):
            self.function()
        self.wait_for_device()
        cuda = running_cuda() if one_by_one else None
        waits, of_all, computing = voluntary_waits(), time.process_time(), time.thread_time()
        start = time.perf_counter()
        for _ in range(loops):
            self.function()
            if cuda is not None:
                cuda.synchronize()
        self.wait_for_device()
        seconds = time.perf_counter() - start
        computing = time.thread_time() - computing
        by_others = time.process_time() - of_all - computing
        lost = seconds - computing
        # A call that waited, or may have waited for its own threads, has lost nothing to others.
        waited = by_others > OTHERS_SHARE * seconds or not voluntary_waits() == waits is not None
        return {
            "seconds": seconds,
            "lost_s": 0.0 if waited or lost < DISPLACED_SHARE * seconds else lost,
        }

    def wait_for_device(self) -> None:
        """Return when CUDA, if the target uses it, has done what it was given."""
        cuda = running_cuda()
        if cuda is not None:
            cuda.synchronize()

    def outputs(self, file: str) -> int:
        """Write what one call gives to a file of arrays."""
        import numpy

        arrays = arrays_in(self.function())
        named: dict[str, Any] = {str(index): array for index, array in enumerate(arrays)}
        numpy.savez(file, **named)
        return len(named)

    def attention_mask(self, file: str) -> None:
        """Write which positions of the inputs count to a file, where a mask hides some."""
        import numpy

        try:
            from tinytorch.comparison.outputs import attention_mask_of
        except ImportError:  # without tinytorch, or with one that compares all positions
            return
        mask = attention_mask_of(self.workload)
        if mask is not None:
            numpy.savez(file, mask=mask)

    def evaluate(self, file: str) -> str | None:
        """Write the score of every held-out example to a file."""
        import numpy

        if getattr(self.workload, "evaluate", None) is None:
            return None
        scores = numpy.asarray(self.workload.evaluate(self.workload.model), dtype=numpy.float64)
        numpy.savez(file, scores=scores)
        metric: str = self.workload.metric
        return metric

    def environment(self) -> dict[str, Any]:
        """Describe the machine and software that this process sees."""
        from tinytorch.measure.environment import describe_environment

        described: dict[str, Any] = describe_environment(os.getcwd()).to_dict()
        return described


def running_cuda() -> Any:
    """Return `torch.cuda` where the target uses it, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch.cuda


def load(target: str) -> Any:
    """Return the workload of a target: as tinytorch does, or without it."""
    try:
        load_workload = of_tinytorch("load_workload", LOADERS)
    except ImportError:
        return load_alone(target)
    return load_workload(target)


def of_tinytorch(name: str, places: tuple[str, ...]) -> Any:
    """Return a name of tinytorch from the first of these modules that its version has.

    Its files tell: an editable installation would give a module that this version does not have,
    from another one.
    """
    package = importlib.import_module(places[0].partition(".")[0])  # the folder's own comes first
    folder = Path(package.__file__ or "").parent
    for place in places:
        if folder.joinpath(*place.split(".")[1:]).with_suffix(".py").is_file():
            return getattr(importlib.import_module(place), name)
    raise ImportError(f"tinytorch has no {name} in {' or '.join(places)}")


def arrays_in(output: Any) -> list[Any]:
    """Return every tensor, array and number in an output: as tinytorch does, or without it."""
    try:
        adapter_for = of_tinytorch("adapter_for", ADAPTERS)
        return list(adapter_for(None, (output,)).arrays(output))
    except (ImportError, AttributeError):  # none, or one from before it could do that
        return [array for leaf in leaves_of(output) for array in as_arrays(leaf)]


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield what lies in tuples, lists and mappings, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def as_arrays(leaf: Any) -> list[Any]:
    """Return a tensor or a number as an array; nothing for anything else."""
    import numpy

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu()
        leaf = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
    data = getattr(leaf, "data", None)
    array = numpy.asarray(data if isinstance(data, numpy.ndarray) else leaf)
    return [array] if array.dtype.kind in "biufc" else []


def load_alone(target: str) -> tuple[Any, Any]:
    """Return a model and its inputs from a factory, where tinytorch is not installed."""
    place, _, name = target.rpartition(":")
    if not place:
        raise ImportError(f"{target!r} needs tinytorch, which cannot be imported here")
    if place.endswith(".py"):
        sys.path.insert(0, str(Path(place).resolve().parent))
        module = import_file(place)
    else:
        module = importlib.import_module(place)
    model, inputs = getattr(module, name)()
    return model, inputs if isinstance(inputs, (tuple, Mapping)) else (inputs,)


def runner(workload: Any) -> tuple[Callable[[], object], Any]:
    """Return a function that calls the model once, and the context that it runs in."""
    if not isinstance(workload, tuple):
        adapter_for = of_tinytorch("adapter_for", ADAPTERS)
        adapter = adapter_for(workload.model, (*workload.inputs, *workload.keywords.values()))
        return workload.run, adapter.without_gradients()
    model, inputs = workload
    model = model if callable(model) else model.forward
    torch = sys.modules.get("torch")
    context = torch.no_grad() if torch is not None else nullcontext()
    if isinstance(inputs, Mapping):
        return lambda: model(**inputs), context
    return lambda: model(*inputs), context


def voluntary_waits() -> int | None:
    """Return how often this thread has waited voluntarily; None where it is not counted."""
    try:
        import resource

        waits: int = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return waits
    except (ImportError, AttributeError):
        return None


def is_missing(target: str) -> bool:
    """Return whether there is no such file, module or function, as opposed to one that fails."""
    place, _, name = target.rpartition(":")
    try:
        if not place:
            return False
        if place == "hf":
            return not os.path.isdir(name)
        if place.endswith(".py"):
            return not os.path.isfile(place) or not hasattr(import_file(place), name)
        if not has_module(place):
            return True
        return not hasattr(importlib.import_module(place), name)
    except BaseException:
        return False


def has_module(name: str) -> bool:
    """Return whether a module can be found; a parent that fails to import counts as found."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if importlib.util.find_spec(".".join(parts[:length])) is None:
            return False
    return True


def imported_files() -> dict[str, str]:
    """Return the file of every module that was imported, by its name."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and file:
            found[name] = os.path.realpath(file)
    return found


def import_file(path: str) -> Any:
    """Import a file as a separate module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.append(folder)  # so that the file can import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module

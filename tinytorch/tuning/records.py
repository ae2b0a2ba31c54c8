"""Attempts and optimizations as records, so that nothing that was finished is tried again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

import tinytorch.errors as errors_module
from tinytorch import __version__
from tinytorch.errors import RecordError, TinyTorchError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.gpu import DeviceWatch
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import Adapter, adapter_for, leaves, owner_of
from tinytorch.models.core import own_tensors
from tinytorch.models.workload import Workload
from tinytorch.records.record import Record, SeriesKey, comparison_samples
from tinytorch.records.store import RecordStore
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    BROKEN,
    DROPPED,
    INACCURATE,
    NO_GAIN,
    NOT_TRIED,
    SKIPPED,
    WORSE,
    Attempt,
    Settings,
)
from tinytorch.tuning.catalog import CATALOG, Entry
from tinytorch.tuning.optimization import Optimization

# ---------------------------------------------------------------- a short text that says which
# workload this is: the same in every process, for the same one

DIGEST_BYTES = 16
Add = Callable[[str, Any], None]


class UnreadableError(Exception):
    """A model whose weights cannot be read."""


def workload_fingerprint(workload: Workload) -> str:
    """Return a hash of everything observable of a workload.

    In it are the values of parameters, buffers, inputs and calibration data, classes and settings
    of the layers, the files that define them and `evaluate`, and the arrays and numbers that
    `evaluate` holds itself. What code reads from elsewhere, such as a file, is not. A model whose
    numbers cannot be read, as with weights packed by PyTorch, gets another fingerprint each time:
    it equals nothing.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    adapter = adapter_for(workload.model, workload.arguments)
    add = partial(_add, digest.update, adapter)
    try:
        _add_model(add, adapter, workload.model)
        _add_tree(add, "inputs", list(workload.inputs))
        _add_tree(add, "keywords", dict(workload.keywords))
        _add_tree(add, "calibration", list(workload.calibration))
        for place, held in enumerate(_held_by(workload.evaluate)):
            _add_tree(add, f"evaluate.{place}", held)
    except Exception:  # whatever a foreign tensor raises, the workload itself may be fine
        return secrets.token_hex(DIGEST_BYTES)
    add("metric", workload.metric)
    code = [] if workload.evaluate is None else list(_code_of(workload.evaluate))
    _add_code(add, [*code, *_code_of_layers(adapter, workload.model)])
    return digest.hexdigest()


def _add(update: Callable[[Any], None], adapter: Adapter, name: str, value: Any) -> None:
    """Add one value under its name: a text, bytes, or what an adapter can turn into arrays."""
    update(f"\0{name}\0{type(value).__name__}\0".encode("utf-8", "surrogatepass"))
    if isinstance(value, str):
        update(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        update(value)
    for array in adapter.arrays(value):
        update(f"{array.dtype.str}{array.shape}".encode())
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _add_tree(add: Add, path: str, value: Any) -> None:
    """Add what lies in lists, tuples and mappings, with its place."""
    if isinstance(value, Mapping):
        for key in value:
            _add_tree(add, f"{path}.{key}", value[key])
    elif isinstance(value, list | tuple):
        add(path, str(len(value)))
        for index, item in enumerate(value):
            _add_tree(add, f"{path}.{index}", item)
    else:
        add(path, value)


# ---------------------------------------------------------------- the model


def _add_model(add: Add, adapter: Adapter, model: Any) -> None:
    unseen = {spec.name for spec in adapter.parameters(model)}
    if adapter.packed_layers(model):
        raise UnreadableError
    seen: set[int] = set()
    for path, module in adapter.modules(model).items():
        add(path, type(module).__qualname__)
        for name, value in _plain_settings(module):
            _add_tree(add, f"{path}:{name}", value)
        for name, tensor in TENSORS_OF[adapter.name](module):
            full = f"{path}.{name}" if path else name
            unseen.discard(full)
            if id(tensor) not in seen:  # what layers share is read once
                seen.add(id(tensor))
                add(full, tensor)
    if unseen:
        raise UnreadableError


def _registered(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield parameters and buffers of a module of PyTorch."""
    if hasattr(module, "named_buffers"):
        yield from module.named_parameters(recurse=False)
        yield from module.named_buffers(recurse=False)


TENSORS_OF: dict[str, Callable[[Any], Iterable[tuple[str, Any]]]] = {
    "core": own_tensors,
    "pytorch": _registered,
}
"""Framework -> what gives the tensors that a layer holds itself."""


def _plain_settings(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield numbers, texts and arrays that a layer, or its configuration, holds by name.

    Private ones may be counters or addresses; which code a configuration chooses is private, too.
    """
    for name, value in sorted(getattr(module, "__dict__", {}).items()):
        if type(value).__name__.endswith("Config"):
            for inner, setting in sorted(vars(value).items()):
                is_ours = not inner.startswith("_") or "implementation" in inner
                if is_ours and _is_plain(setting):
                    yield f"{name}.{inner}", setting
        elif not name.startswith("_") and _is_plain(value):
            yield name, value


def _is_plain(value: Any) -> bool:
    plain = (str, bool, int, float, np.ndarray, np.generic, type(None))
    return all(isinstance(leaf, plain) for leaf in leaves(value))


# ---------------------------------------------------------------- the code


def _code_of_layers(adapter: Adapter, model: Any) -> Iterator[CodeType]:
    kinds = {type(module): None for module in adapter.modules(model).values()}
    for kind in (parent for each in kinds for parent in each.__mro__):
        if kind.__module__.partition(".")[0] == "torch":
            continue  # of a version that is known, and changed by torch.compile when it begins
        for member in vars(kind).values():
            yield from _code_of(member)
    yield from _code_of(owner_of(model))


def _code_of(function: Any) -> Iterator[CodeType]:
    owner = owner_of(function)
    for place in (owner, vars(type(owner)).get("__call__")):  # a function, or what acts as one
        found = getattr(place, "__code__", None)
        if isinstance(found, CodeType):
            yield found


def _held_by(function: Any) -> Iterator[Any]:
    """Yield what a function brings with it: bound arguments, defaults, what it closes over.

    Of an object that acts as a function, its attributes.
    """
    while isinstance(function, partial):
        yield list(function.args)
        yield dict(function.keywords)
        function = function.func
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if owner is None and not hasattr(function, "__code__"):
        owner = function
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        yield {name: value}
    yield list(getattr(function, "__defaults__", None) or ())
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty: the function was never called
            continue


def _add_code(add: Add, codes: Iterable[CodeType]) -> None:
    """Add the files that hold some code, or the code itself where it is in no file."""
    files: dict[str, None] = {}
    for code in codes:
        if Path(code.co_filename).is_file():
            files[code.co_filename] = None
        else:
            _add_bare_code(add, code)
    for content in sorted({Path(file).read_bytes() for file in files}):
        add("file", content)


def _add_bare_code(add: Add, code: CodeType) -> None:
    add(code.co_qualname, code.co_code)
    add("names", repr(code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_bare_code(add, constant)
        else:
            add("constant", repr(constant))


# ---------------------------------------------------------------- attempts and optimizations as
# records, so that nothing that was finished is tried again

ATTEMPT_KIND, OPTIMIZATION_KIND = "attempt", "optimization"
JOIN = " + "
RECENT = 5
"""Number of recent attempts that are searched for one that was not skipped."""
FINISHED = frozenset(
    {BETTER, NO_GAIN, WORSE, ACCURACY_INCONCLUSIVE, INACCURATE, BROKEN, DROPPED, SKIPPED}
)
"""Outcomes that stay: what failed or was inconclusive may turn out otherwise the next time.

An inconclusive accuracy stays: other examples, or another margin, are other settings.
"""
DECIDING_FOLDERS = (
    "comparison",
    "core",
    "formats",
    "measure",
    "models",
    "profiling",
    "transforms",
    "tuning",
)


@dataclass(frozen=True)
class Origin:
    """Where attempts come from: what was asked of which model, and on which machine.

    An attempt can stand in for another where `settings` and the machine's fingerprint are equal,
    and so are the entries of the catalog that it is made of. `run` is shared by all records of
    one run.
    """

    workload: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    run: str = ""
    catalog: tuple[Entry, ...] = CATALOG


def origin_of(
    workload: Workload,
    settings: Settings,
    *,
    run: str = "",
    catalog: tuple[Entry, ...] = CATALOG,
    scores: npt.ArrayLike | None = None,
) -> Origin:
    """Describe where attempts on a workload come from. Make it once, before the first attempt.

    What a workload is, is read from the values of its parameters, which takes about a second for
    each gigabyte. `scores` are those of the baseline: they distinguish other examples behind the
    same `evaluate`. Limits and the budget are not part of it: neither changes what an attempt
    gives; the goal is, since it decides about the outcome and which stacks are compared.
    """
    adapter = adapter_for(workload.model, workload.arguments)
    device = workload.device
    environment = describe_environment(Path.cwd()).to_dict()
    asked = {
        "workload": workload_fingerprint(workload),
        "scores": _digest(scores),
        "framework": adapter.name,
        "device": _device_name(device),
        "goal": settings.goal,
        "max_accuracy_drop": settings.max_accuracy_drop,
        "max_output_error": settings.max_output_error,
        "seed": settings.seed,
        "libraries": environment["libraries"],
        "tinytorch": _own_version(),
    }
    return Origin(workload.name, asked, environment, run, catalog)


def attempt_record(attempt: Attempt, origin: Origin) -> Record:
    """Make a record of one attempt, whatever came of it."""
    samples: dict[str, Samples] = {}
    if attempt.comparison is not None:
        samples = comparison_samples(attempt.comparison)
    return Record(
        kind=ATTEMPT_KIND,
        name=_name(origin, attempt.stack),
        samples=samples,
        environment=origin.environment,
        settings=_settings(origin, attempt.stack),
        details=attempt.to_dict(),
        run=origin.run,
        notes=attempt.notes,
    )


def optimization_record(optimization: Optimization, origin: Origin) -> Record:
    """Make a record of everything that was tried; its numbers are those of what is recommended."""
    best = optimization.recommended
    samples: dict[str, Samples] = {}
    if best is not None and best.comparison is not None:
        samples = comparison_samples(best.comparison)
    return Record(
        kind=OPTIMIZATION_KIND,
        name=origin.workload,
        samples=samples,
        environment=origin.environment,
        settings={**origin.settings, "limits": dict(optimization.settings.limits)},
        details=optimization.to_dict(),
        run=origin.run,
        notes=optimization.notes,
    )


def find_finished(store: RecordStore, origin: Origin) -> dict[tuple[str, ...], Attempt]:
    """Return the attempts that need not be repeated, the newest of each stack.

    They were made on this machine, of the same model, with the same inputs, settings, libraries
    and tinytorch; a note says when. What failed, or showed nothing, is not among them.
    """
    prefix, machine = _name(origin, ()), origin.environment["fingerprint"]
    found: dict[tuple[str, ...], Attempt] = {}
    for key in (each.key for each in store.series()):
        if key.kind != ATTEMPT_KIND or key.machine != machine or not key.name.startswith(prefix):
            continue
        stack = tuple(key.name.removeprefix(prefix).split(JOIN))
        attempt = _newest(store, key) if key.settings_key == _settings_key(origin, stack) else None
        if attempt is not None and attempt.stack == stack and attempt.outcome in FINISHED:
            found[stack] = attempt
    return found


def is_from_before(attempt: Attempt) -> bool:
    """Return whether an attempt comes from an earlier run, by :func:`find_finished`."""
    return bool(attempt.measured_at)


def add_record(store: RecordStore, record: Record) -> str:
    """Add a record to a store; where that fails, give the reason instead of raising.

    A full disk must not take the results of minutes with it.
    """
    try:
        store.add(record)
    except RecordError as error:
        return f"not kept as a record: {error}"
    return ""


# ---------------------------------------------------------------- names and settings


def _name(origin: Origin, stack: tuple[str, ...]) -> str:
    return f"{origin.workload}: {JOIN.join(stack)}"


def _settings(origin: Origin, stack: tuple[str, ...]) -> dict[str, Any]:
    entries = {each.name: each.to_dict() for each in origin.catalog}
    parts = [entries.get(name, {"name": name}) for name in stack]
    return {**origin.settings, "stack": list(stack), "entries": parts}


def _settings_key(origin: Origin, stack: tuple[str, ...]) -> str:
    settings = _settings(origin, stack)
    return Record(ATTEMPT_KIND, origin.workload, {}, origin.environment, settings).settings_key


def _digest(scores: npt.ArrayLike | None) -> str:
    """Return a hash of scores, rounded to be independent of the order of summation."""
    if scores is None:
        return ""
    values = np.asarray(scores, dtype=np.float64)
    rounded = np.array([float(f"{each:.5g}") for each in values.reshape(-1)])
    return hashlib.blake2b(rounded.tobytes(), digest_size=8).hexdigest()


def _device_name(device: str) -> str:
    return DeviceWatch(device).name or device if device.startswith("cuda") else device


@cache
def _own_version() -> str:
    """Return the version, and a hash of the files that determine the result of an attempt."""
    package = Path(errors_module.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for folder in DECIDING_FOLDERS:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return f"{__version__} {digest.hexdigest()}"


# ---------------------------------------------------------------- reading back


def _newest(store: RecordStore, key: SeriesKey) -> Attempt | None:
    """Return the last attempt of a series that was not skipped."""
    records = store.find(**key._asdict(), newest_first=True, limit=RECENT)
    attempts = (_attempt_of(each) for each in records)
    return next((each for each in attempts if each and each.outcome != NOT_TRIED), None)


def _attempt_of(record: Record) -> Attempt | None:
    """Read the attempt in a record, with a note of its date; None if there is none."""
    try:
        attempt = Attempt.from_dict(record.details)
    except (TinyTorchError, KeyError, TypeError, ValueError, AttributeError):
        return None
    made = f"measured at {record.created_at[:16].replace('T', ' ')} UTC, not again"
    return replace(attempt, notes=(*attempt.notes, made), measured_at=record.created_at)

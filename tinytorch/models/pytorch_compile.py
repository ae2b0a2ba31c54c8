"""Compiling with torch.compile: what it needs, and what went wrong. Imported after torch."""

from __future__ import annotations

import linecache
import logging
import os
import shutil
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from threading import Lock
from types import CodeType
from typing import Any

import torch

from tinytorch.errors import SettingError, first_line
from tinytorch.models.pytorch_tensors import WrappedModel, around_calls, wrappers_of

# ---------------------------------------------------------------- where torch.compile goes back to
# Python, and how many graphs it makes. Imported after torch

Call = Callable[..., Any]

NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent.parent)
"""Code in these folders calls a model, or is called by it; the model itself is elsewhere."""
LONGEST_REASON = 200

NOISE = {
    # Kernels for other processors and other versions of Python, which nothing here calls.
    "torchao": "Failed to load ",
    # What torchao tells PyTorch about its own types.
    "torch.utils._pytree": "is an Enum subclass and is now natively supported",
}
"""By logger, what torchao logs at every import, and users cannot act on."""
COMPILER_LOGGERS = (
    "torch._inductor",
    "torch._dynamo",
    "torch._functorch",
    "torch.fx",
    "torch.utils.cpp_extension",
)

_numbers = count(1)


@contextmanager
def without_noise() -> Iterator[None]:
    """Drop exactly the messages of NOISE; everything else is logged as ever."""
    filters = []
    for name, words in NOISE.items():
        logger = logging.getLogger(name)

        def keep(record: logging.LogRecord, words: str = words) -> bool:
            return words not in record.getMessage()

        logger.addFilter(keep)
        filters.append((logger, keep))
    try:
        yield
    finally:
        for logger, keep in filters:
            logger.removeFilter(keep)


@contextmanager
def quiet_compiler(*others: str) -> Iterator[None]:
    """Keep warnings of torch's compiler, which are about its own code, off the terminal.

    So are those of the `others`, loggers by name.
    """
    loggers = [logging.getLogger(name) for name in (*COMPILER_LOGGERS, *others)]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(max(each.level, logging.ERROR))
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


@dataclass(frozen=True)
class GraphBreak:
    """A place where the compiler gives up, goes back to Python, and begins another graph."""

    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line}" if self.file else "somewhere"
        code = f" `{self.code}`" if self.code else ""
        return f"{place}{code}: {self.reason}"


@dataclass(frozen=True)
class Graphs:
    """How many graphs the compiler makes of a call, and what is between them.

    `later` counts the graphs that each further call adds, because its arguments are of another
    kind.
    """

    count: int
    breaks: tuple[GraphBreak, ...] = ()
    later: tuple[int, ...] = ()


def own_entrance(call: Call) -> Call:
    """Return a function of its own code around a call.

    What is compiled is kept with the code of the outermost function, for a handful of variants;
    beyond them nothing is compiled any more. Models that share that code, as every Sequential
    does, would use up each other's variants. Which sizes vary is remembered by the name.
    """

    def compiled_call(*inputs: Any, **keywords: Any) -> Any:
        return call(*inputs, **keywords)

    name = f"compiled_call_{next(_numbers)}"
    compiled_call.__code__ = compiled_call.__code__.replace(co_name=name)
    return compiled_call


def graphs_of(
    call: Call,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    *,
    dynamic: bool | None = None,
    then: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]] = (),
) -> Graphs:
    """Trace a call as torch.compile does, and count its graphs. The call runs once, as it is.

    `then` are the arguments of further calls. Nothing is made faster by all that, and whatever
    else was compiled stays so.
    """
    from torch._dynamo import output_graph

    made = 0

    def counting(graph: Any, examples: Any) -> Call:
        nonlocal made
        made += 1
        forward: Call = graph.forward
        return forward

    reasons: list[Any] = getattr(output_graph, "graph_break_reasons", [])
    known = len(reasons)
    function: Any = torch.compile(own_entrance(call), backend=counting, dynamic=dynamic)
    with _leaving_no_trace(counting), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about what comes back as a reason
        try:
            function(*inputs, **(keywords or {}))
            counts = [made]
            found = tuple(_graph_break(each) for each in reasons[known:])
            for more, named in then:
                function(*more, **named)
                counts.append(made)
        finally:
            del reasons[known:]
    first = {(each.file, each.line): each for each in reversed(found)}
    breaks = tuple(each for each in found if first[each.file, each.line] is each)
    return Graphs(counts[0], breaks, tuple(b - a for a, b in pairwise(counts)))


def _graph_break(reason: Any) -> GraphBreak:
    file, line = users_line((frame.filename, frame.lineno) for frame in reason.user_stack)
    return GraphBreak(file, line, linecache.getline(file, line).strip(), _reason(reason.reason))


def _reason(text: str) -> str:
    """Make one line of a reason: what it is called, and the explanation if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    title = lines[0] if lines else "torch gave no reason"
    said = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation:")]
    full = f"{title}: {said[0]}" if said else title
    return full if len(full) <= LONGEST_REASON else f"{full[: LONGEST_REASON - 3]}..."


def users_line(frames: Iterable[tuple[str, int | None]]) -> tuple[str, int]:
    """Return the innermost place, as file and line, that is neither torch's code nor ours."""
    found = ("", 0)
    for file, line in frames:
        if file and not any(folder in Path(file).parents for folder in NOT_THE_USERS):
            found = (file, line or 0)
    return found


def users_place(error: BaseException) -> str:
    """Return the line of the user's that raised, as " (file.py:3: code)", or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    file, line = users_line((each.filename, each.lineno) for each in frames)
    if not file:
        return ""
    code = linecache.getline(file, line).strip()
    return f" ({Path(file).name}:{line}{f': {code}' if code else ''})"


@contextmanager
def _leaving_no_trace(backend: Any) -> Iterator[None]:
    """Put counters back, and drop what a block compiled with a backend.

    Code that something else was compiled from, too, keeps ours: it could only be dropped with the
    other.
    """
    from torch._dynamo import convert_frame
    from torch._dynamo.utils import counters

    before = {name: Counter(each) for name, each in counters.items()}
    codes: list[CodeType] = []
    register: Any = getattr(convert_frame, "register_bytecode_hook", None)
    hook = register(lambda code, _: codes.append(code)) if register is not None else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        for code in {id(each): each for each in codes}.values():
            _drop(code, backend)
        counters.clear()
        counters.update(before)


def _drop(code: CodeType, backend: Any) -> None:
    from torch._C._dynamo import eval_frame

    entries: Any = getattr(eval_frame, "_debug_get_cache_entry_list", None)
    reset: Any = getattr(eval_frame, "reset_code", None)
    if entries is None or reset is None:
        return
    owners = [getattr(each.backend, "compiler_fn", each.backend) for each in entries(code)]
    if owners and all(owner is backend for owner in owners):
        reset(code)


# ---------------------------------------------------------------- compiling with torch.compile:
# what it needs, and what went wrong. Imported after torch

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

# ---------------------------------------------------------------- what it needs


def why_no_compiler(device: str | torch.device) -> str:
    """Return why torch.compile cannot make code for a device, or nothing.

    Whether the compilers that are found work is known only once something was compiled.
    """
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        return f"code is compiled for cpu and cuda, and this model is on {kind}"
    return _why_no_tracing() or (_why_no_triton() if kind == "cuda" else _why_no_cpp())


def _why_no_tracing() -> str:
    from torch._dynamo import eval_frame

    check: Any = getattr(eval_frame, "check_if_dynamo_supported", None)
    try:
        if check is not None:
            check()
    except Exception as error:  # it says in words what is not supported
        return f"torch.compile does not work with this Python: {first_line(error)}"
    return ""


def _why_no_cpp() -> str:
    from torch._inductor import config

    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
    except ImportError:  # it moved; compiling will tell
        return ""
    find: Any = get_cpp_compiler
    try:
        find()
    except Exception:  # of a class of its own, which is no part of what torch promises
        asked: Any = config.cpp.cxx
        names = [asked] if isinstance(asked, str) else [str(name) for name in asked or () if name]
        return (
            f"there is no C++ compiler: torch looked for {' and '.join(names) or 'one'}; install "
            "one, or name yours in the environment variable CXX before Python starts"
        )
    return ""


def _why_no_triton() -> str:
    from torch.utils._triton import has_triton, has_triton_package

    package: Any = has_triton_package
    works: Any = has_triton
    if not package():
        return "there is no Triton, with which torch.compile makes CUDA kernels: install triton"
    if not works():
        return "Triton has no support for this device; it needs compute capability 7.0 or more"
    asked = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([asked] if asked else ["gcc", "clang", "cc"])):
        return (
            f"there is no C compiler ({asked or 'gcc or clang'}), with which Triton starts its "
            "kernels; install one, or name yours in the environment variable CC"
        )
    return ""


# ---------------------------------------------------------------- compiling


def uses_cuda_graphs(mode: str) -> bool:
    """Return whether a mode captures CUDA graphs, whose outputs the next call overwrites."""
    return mode in ("reduce-overhead", "max-autotune")


def compiled(
    call: Call,
    *,
    mode: str = "default",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    freeze: bool = False,
    options: Mapping[str, Any] | None = None,
    backend: Any = "inductor",
) -> Call:
    """Return a function that compiles a model or function when it is first called.

    `freeze` packs weights as constants where no gradients are asked for: changes of weights are
    then not seen. It needs `fullgraph`, since what is compiled behind a graph break would stay
    when the function goes, as code of the model's own functions; the rest goes with it.
    """
    if mode not in MODES:
        raise SettingError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if freeze and not fullgraph:
        raise SettingError("freeze=True needs fullgraph=True: packed weights must be in one graph")
    settings: dict[str, Any] = {"dynamic": dynamic, "fullgraph": fullgraph, "backend": backend}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch imports what it has deprecated
        if backend == "inductor":
            from torch._inductor import list_mode_options

            list_options: Any = list_mode_options
            merged = list_options(mode, dynamic) | ({"freezing": True} if freeze else {})
            settings["options"] = merged | dict(options or {})
        function: Call = torch.compile(own_entrance(call), **settings)
    function = _surrounded(function, call)
    return _freezing(function) if freeze and backend == "inductor" else function


def _surrounded(function: Call, call: Call) -> Call:
    """Let what the wrappers of a model set hold while it is compiled, and while that runs."""
    if all(type(each).around_call is WrappedModel.around_call for each in wrappers_of(call)):
        return function

    def surrounded_call(*inputs: Any, **keywords: Any) -> Any:
        with around_calls(call):
            return function(*inputs, **keywords)

    return surrounded_call


def _freezing(function: Call) -> Call:
    def frozen_call(*inputs: Any, **keywords: Any) -> Any:
        with _packing_weights:
            return function(*inputs, **keywords)

    return frozen_call


class _PackingWeights:
    """A block in which the half that traces packs weights, whenever it traces again.

    It reads a setting, which belongs to the thread or, in older versions, to the process: then
    threads must not take over from each other what was set only for a call. `config.patch` would
    do no better, in a hundred microseconds.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._outside: Any = False

    def __enter__(self) -> None:
        from torch._inductor import config

        settings: Any = config
        with self._lock:
            if not self._inside:
                self._outside = settings.freezing
            self._inside += 1
            settings.freezing = True

    def __exit__(self, *_: object) -> None:
        from torch._inductor import config

        settings: Any = config
        with self._lock:
            self._inside -= 1
            settings.freezing = self._outside


_packing_weights = _PackingWeights()


def refusals() -> tuple[type[Exception], ...]:
    """Return what torch raises where it cannot compile a call, before it computes anything."""
    from torch._dynamo import exc

    others = (getattr(exc, name, None) for name in ("FailOnRecompileLimitHit",))
    return (exc.TorchDynamoException, *(each for each in others if each is not None))


def why_it_failed(error: BaseException) -> str:
    """Say in one line what went wrong while compiling: what is inside of torch's own errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.endswith("raised:")]
    if not told:
        return type(error).__name__
    # A compiler of another language says what it minds further down.
    seen = next((line for line in told[1:] if " error: " in line), "")
    name = "" if len(told) < len(lines) else f"{type(error).__name__}: "
    return f"{name}{told[0]}{f' ({seen})' if seen else ''}"

"""Compiling with torch.compile: what it needs, and what went wrong. Imported after torch."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import torch

from tinytorch.adapters.pytorch_graph_breaks import own_entrance
from tinytorch.adapters.pytorch_wrapping import WrappedModel, around_calls, wrappers_of
from tinytorch.errors import SettingError, first_line

__all__ = [
    "MODES",
    "compiled",
    "refusals",
    "uses_cuda_graphs",
    "why_it_failed",
    "why_no_compiler",
]

Call = Callable[..., Any]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

# ---------------------------------------------------------------- what it needs


def why_no_compiler(device: str | torch.device) -> str:
    """Say why torch.compile cannot make code for a device, or nothing.

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
    """Tell whether a mode captures CUDA graphs: the next call overwrites what one has returned."""
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
    """Give a function that compiles a model or function when it is first called.

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
    """Give what torch raises where it cannot compile a call, before it computes anything."""
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

"""Where torch.compile goes back to Python, and how many graphs it makes. Imported after torch."""

from __future__ import annotations

import linecache
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import torch

__all__ = ["GraphBreak", "Graphs", "graph_breaks", "graphs_of", "own_entrance", "users_line"]

Call = Callable[..., Any]

NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent.parent)
"""Code in these folders calls a model, or is called by it; the model itself is elsewhere."""
LONGEST_REASON = 200

_numbers = count(1)


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
    """Give a function of its own code around a call.

    What is compiled is kept with the code of the outermost function, for a handful of variants;
    beyond them nothing is compiled any more. Models that share that code, as every Sequential
    does, would use up each other's variants. Which sizes vary is remembered by the name.
    """

    def compiled_call(*inputs: Any, **keywords: Any) -> Any:
        return call(*inputs, **keywords)

    name = f"compiled_call_{next(_numbers)}"
    compiled_call.__code__ = compiled_call.__code__.replace(co_name=name)
    return compiled_call


def graph_breaks(
    call: Call, inputs: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
) -> tuple[GraphBreak, ...]:
    """Name the places where torch.compile would go back to Python, each once."""
    return graphs_of(call, inputs, keywords).breaks


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
    """Give the innermost place, as file and line, that is neither torch's code nor ours."""
    found = ("", 0)
    for file, line in frames:
        if file and not any(folder in Path(file).parents for folder in NOT_THE_USERS):
            found = (file, line or 0)
    return found


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

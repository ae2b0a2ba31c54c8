"""What a model needs once before it runs at speed: compiling, capturing, tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.adapters.adapter import adapter_for, owner_of

__all__ = [
    "FIRST_CALL",
    "Preparation",
    "is_compiled",
    "preparations_of",
    "prepares_itself",
    "while_planning",
]

FIRST_CALL = "first call"
"""What nobody has declared, but was seen: the first call takes longer than those after it."""
COMPILED_BY_DYNAMO = "_torchdynamo_orig_callable"


@dataclass(frozen=True)
class Preparation:
    """Something that was done once, and is no part of the time of a call.

    `what` is a word such as "compiled" or "captured". `nbytes` is the memory that stays taken for
    it, on the device of the model, as measured; None where nobody knows.
    """

    what: str
    seconds: float
    nbytes: int | None = None

    @property
    def is_estimate(self) -> bool:
        """Say whether the time is the difference of two calls, not that of the thing itself."""
        return self.what == FIRST_CALL

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Preparation:
        """Give back what :meth:`to_dict` wrote."""
        return cls(**fields)


def while_planning(preparations: Sequence[Preparation]) -> Preparation:
    """Give what a plan's trial has spent: what is made later may find its results kept by torch.

    Its memory was given back.
    """
    names = " and ".join(dict.fromkeys(each.what for each in preparations)) or "tried"
    return Preparation(f"{names} while planning", sum(each.seconds for each in preparations))


def preparations_of(model: Any) -> tuple[Preparation, ...]:
    """Give what was done to a model, or to layers in it, once; nothing where it is called as it is.

    A model that has some belongs to its memory: a copy of it would have to be prepared again.
    """
    # A wrapper gives those of what is inside, too.
    found = {id(each): each for part in _parts(model) for each in _declared(part) or ()}
    return tuple(found.values())


def prepares_itself(model: Any) -> bool:
    """Tell whether a model, or a layer in it, is prepared when it is first called, if not before.

    That is what compiled models do, and those that keep `preparations`, be it none so far.
    """
    return any(_compiles(part) or _declared(part) is not None for part in _parts(model))


def is_compiled(model: Any) -> bool:
    """Tell whether `torch.compile` has a part in a model: it compiles when it is first called."""
    return any(_compiles(part) for part in _parts(model))


def _parts(model: Any) -> Iterator[Any]:
    owner = owner_of(model)
    yield owner
    for part in adapter_for(model).modules(model).values():
        if part is not owner:
            yield part


def _declared(part: Any) -> Sequence[Preparation] | None:
    own: Any = getattr(part, "preparations", None)
    is_list = isinstance(own, tuple | list)
    return own if is_list and all(isinstance(each, Preparation) for each in own) else None


def _compiles(part: Any) -> bool:
    """Look for `torch.compile(module)`, `module.compile()`, and compiled methods and functions."""
    attributes = getattr(part, "__dict__", {})
    if "dynamo_ctx" in attributes or attributes.get("_compiled_call_impl") is not None:
        return True
    functions = [part, *attributes.values(), getattr(type(part), "forward", None)]
    return any(callable(each) and hasattr(each, COMPILED_BY_DYNAMO) for each in functions)

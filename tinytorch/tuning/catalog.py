"""The catalog: what can be tried on a model, derived from the attributes of the transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinytorch.errors import SettingError, did_you_mean
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms import find_transforms
from tinytorch.transforms.plan import RISKS, Risk, Transform


@dataclass(frozen=True)
class Entry:
    """One thing to try: transforms that belong together, in their order.

    Entries of one `role` are rivals: a stack has at most one of each. `cost` is what it costs a
    user beyond the time of trying it. The other fields are attributes of
    :class:`~tinytorch.transforms.plan.Transform`.
    """

    name: str
    transforms: tuple[Transform, ...]
    role: str
    place: int
    risk: Risk
    serves: frozenset[str]
    about: str
    frameworks: tuple[str, ...] = ("core", "pytorch")
    devices: tuple[str, ...] = ("cpu", "cuda")
    setup_s: float = 0.5
    made_for: str = ""
    made_by: str = ""
    cost: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return its name, its transforms and its risk, ready for JSON."""
        transforms = [
            {"transform": each.name, "settings": each.to_dict()} | _origin(each)
            for each in self.transforms
        ]
        return {"name": self.name, "transforms": transforms, "risk": self.risk}


def _origin(transform: Transform) -> dict[str, str]:
    """Return the package of a transform that is not our own: another version is another entry."""
    found = find_transforms().get(transform.name)
    return {"package": found.package} if found is not None and found.package else {}


def _entries_of(transform: type[Transform]) -> Iterator[Entry]:
    """Yield an entry for each variant that a transform names."""
    for variant in transform.variants:
        yield Entry(
            name=variant.name,
            transforms=(*variant.preceded_by, transform(**variant.settings)),
            role=transform.role or transform.__name__,
            place=transform.place,
            risk=transform.risk,
            serves=frozenset(transform.serves),
            about=variant.about,
            frameworks=transform.frameworks,
            devices=transform.devices,
            setup_s=transform.setup_s if variant.setup_s is None else variant.setup_s,
            made_for=transform.made_for,
            made_by=transform.made_by,
            cost=variant.cost,
        )


CATALOG: tuple[Entry, ...] = tuple(
    entry for found in find_transforms().values() for entry in _entries_of(found.transform)
)


def entries_for(
    workload: Workload,
    goal: str,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    catalog: Sequence[Entry] = CATALOG,
) -> tuple[Entry, ...]:
    """Return the entries that apply to a workload for a goal, in the order of the catalog.

    Raise where nothing is left of `only`, with the reasons.
    """
    reasons = _reasons(workload, goal, only, skip, catalog)
    if only and reasons and all(reasons.values()):
        raise SettingError(f"there is nothing to try: {'; '.join(_told(reasons))}")
    return tuple(each for each, reason in reasons.items() if not reason)


def left_out(
    workload: Workload,
    goal: str,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    catalog: Sequence[Entry] = CATALOG,
) -> tuple[str, ...]:
    """Return of each entry in `only` that does not apply why it is not tried."""
    return tuple(_told(_reasons(workload, goal, only, skip, catalog))) if only else ()


def _reasons(
    workload: Workload,
    goal: str,
    only: Sequence[str],
    skip: Sequence[str],
    catalog: Sequence[Entry],
) -> dict[Entry, str]:
    """Return the wanted entries, each with why it does not apply, or ""."""
    adapter = adapter_for(workload.model, workload.arguments)
    device = workload.device.partition(":")[0]
    unwanted = find_entries(skip, catalog)
    wanted = [x for x in (find_entries(only, catalog) if only else catalog) if x not in unwanted]
    kind = type(workload.model).__name__
    return {each: _why_not(each, goal, adapter.name, device, kind) for each in wanted}


def _told(reasons: Mapping[Entry, str]) -> list[str]:
    return [f"{each.name} {reason}" for each, reason in reasons.items() if reason]


def _why_not(entry: Entry, goal: str, framework: str, device: str, kind: str) -> str:
    """Return why an entry does not apply to this goal or this model, or ""."""
    if framework not in entry.frameworks:
        return f"needs a model of {' or '.join(entry.frameworks)}, this is one of {framework}"
    if device not in entry.devices:
        return f"needs {' or '.join(entry.devices)}, this model is on {device}"
    if entry.made_for not in ("", kind):
        return f"needs a {entry.made_for}, made by {entry.made_by}; this is a {kind}"
    return "" if goal in entry.serves else f"does not serve the goal {goal}"


def risk_of(entries: Sequence[Entry]) -> Risk:
    """Return the risk of a stack: the largest of its entries'."""
    return max((each.risk for each in entries), key=RISKS.index, default="exact")


def find_entries(names: Sequence[str], catalog: Sequence[Entry] = CATALOG) -> tuple[Entry, ...]:
    """Return the entries of these names."""
    known = {each.name: each for each in catalog}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SettingError(f"no catalog entry is called {name!r}; {hint}")
    return tuple(known[name] for name in names)

"""The recipe of an optimized model: what was done to which model, as JSON that anybody can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinytorch.codec import Coded, DataError, encode
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError, first_line
from tinytorch.models.workload import Workload
from tinytorch.transforms import find_transforms
from tinytorch.transforms.plan import Plan, Transform

FORMAT, SCHEMA = "tinytorch optimized model", 1

TRANSFORMS: dict[str, type[Transform]] = {
    name: found.transform for name, found in find_transforms().items()
}
"""The name in a recipe -> the transform. Nothing else in a file can be asked for."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe(Coded):
    """How a saved model is made from the original's architecture.

    The first `weights_after` of the plans are carried out on the original, whatever its weights;
    then those of the file are put in, whose hash is `weights_sha256`; then the other plans follow.
    `tensors` are the names and shapes of the original. `packages` has, by the name of a transform
    that is not TinyTorch's own, the package that it comes from, with its version. `architecture`
    says how the original is built where that takes no code of the user's.
    """

    name: str
    framework: str
    device: str
    model: str
    stack: tuple[str, ...]
    plans: tuple[Plan, ...]
    weights_after: int
    weights_sha256: str
    tensors: Shapes
    versions: Mapping[str, str]
    packages: Mapping[str, str] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=dict)

    schema = SCHEMA
    also_written = ("format",)

    @property
    def format(self) -> str:
        return FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data; the last two only where there is something."""
        found = super().to_dict()
        for name in ("packages", "architecture"):
            if not found[name]:
                del found[name]
        return found

    @classmethod
    def from_dict(cls, fields: Any) -> Recipe:
        """Return what :meth:`to_dict` wrote; raise CheckpointError if these are no such fields."""
        if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
            raise CheckpointError("it has no recipe: it is no file of save_optimized()")
        if fields.get("schema") != SCHEMA:
            raise CheckpointError(
                f"its recipe has schema {fields.get('schema')!r}, and this TinyTorch reads "
                f"{SCHEMA}; update TinyTorch"
            )
        try:
            packages = fields.get("packages", {})
            _check_installed({name: str(of) for name, of in packages.items()})
            recipe = super().from_dict(fields)
            recipe = replace(recipe, plans=tuple(map(rebuilt_plan, recipe.plans)))
        except CheckpointError:
            raise
        except (DataError, TypeError, ValueError) as error:
            raise CheckpointError(f"its recipe is damaged: {first_line(error)}") from error
        count = recipe.weights_after
        if not 0 <= count <= len(recipe.plans):
            raise CheckpointError(
                f"its recipe is damaged: the weights come after {count} of "
                f"{len(recipe.plans)} plans"
            )
        return recipe

    def check_fits(self, tensors: Shapes, model: Any) -> None:
        """Raise unless a model has the architecture of the original."""
        ours = dict(tensors)
        theirs = dict(self.tensors)
        if ours == theirs:
            return
        every = {**theirs, **ours}
        names = [name for name in every if ours.get(name) != theirs.get(name)]
        first = names[0]
        seen, wanted = (_shape_text(each.get(first)) for each in (ours, theirs))
        raise CheckpointError(
            f"it was made from another architecture than this {type(model).__name__}: {first!r} is "
            f"{wanted} there and {seen} here ({len(names)} of {len(every)} tensors differ); build "
            f"the {self.model} that {self.name!r} was, its weights do not matter"
        )


def packages_of(plans: Sequence[Plan]) -> dict[str, str]:
    """Return the packages of transforms that are not TinyTorch's own, by the names of these."""
    packages = {plan.transform: find_transforms()[plan.transform].package for plan in plans}
    return {name: package for name, package in packages.items() if package}


def _check_installed(packages: Mapping[str, str]) -> None:
    for name, package in packages.items():
        if name not in TRANSFORMS:
            raise CheckpointError(
                f"it needs the transform {name!r} of the package {package}, which is not installed "
                f"here; install it with: pip install {package.replace(' ', '==')}"
            )


def rebuilt_transform(name: Any, settings: Any) -> Transform:
    """Return the transform that a recipe names."""
    if name not in TRANSFORMS:
        raise CheckpointError(
            f"it needs the transform {name!r}, which this TinyTorch does not know (it knows "
            f"{', '.join(TRANSFORMS)}); update TinyTorch"
        )
    try:
        return TRANSFORMS[name](**settings)
    except (SettingError, TypeError) as error:
        raise CheckpointError(
            f"its recipe is damaged, or of another version: {name} does not take "
            f"{settings!r} ({first_line(error)})"
        ) from error


def rebuilt_plan(plan: Plan) -> Plan:
    """Return a plan that may come from JSON with the settings that its transform has.

    In JSON a tuple is a list; `check_made_by` compares settings, and distinguishes them.
    """
    transform = rebuilt_transform(plan.transform, plan.settings)
    own = transform.to_dict()
    if encode(own) != encode(dict(plan.settings)):
        raise CheckpointError(
            f"its recipe is damaged, or of another version: {plan.transform} has the settings "
            f"{own!r}, the recipe {dict(plan.settings)!r}"
        )
    return replace(plan, settings=own)


def last_change(plans: Sequence[Plan]) -> int:
    """Return how many plans it takes until no weight changes any more."""
    changes = [not TRANSFORMS[plan.transform].follows_weights for plan in plans]
    return max((place for place, is_change in enumerate(changes, 1) if is_change), default=0)


def carry_out(workload: Workload, plans: Sequence[Plan], *, is_owned: bool = False) -> Any:
    """Carry out plans on a workload's model, one on what the other gave.

    The model stays as it is, unless it `is_owned`: then no copies take memory.
    """
    for plan in plans:
        if TRANSFORMS[plan.transform].is_prepared and not workload.arguments:
            raise SettingError(
                f"{plan.transform} prepares a model for its inputs, and there are none; give a "
                "workload, Workload(name, model, inputs), instead of the model alone"
            )
        transform = rebuilt_transform(plan.transform, plan.settings)
        try:
            workload = replace(workload, model=_applied(transform, workload, plan, is_owned))
        except Exception as error:  # code of the model runs, too
            reason = str(error) if isinstance(error, TinyTorchError) else first_line(error)
            raise CheckpointError(
                f"{plan.transform} cannot be carried out on this "
                f"{type(workload.model).__name__}: {reason}"
            ) from error
    return workload.model


def _applied(transform: Transform, workload: Workload, plan: Plan, is_owned: bool) -> Any:
    """Apply a plan to a copy of the model, or to the model itself where that is known to do."""
    if not is_owned or plan.is_empty or type(transform).apply is not Transform.apply:
        return transform.apply(workload, plan)
    plan.check_made_by(transform.name, transform.to_dict())
    return transform.change(workload.model, workload, plan)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Return a recipe as the text of a file."""
    return json.dumps(recipe, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(shape)

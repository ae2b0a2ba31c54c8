"""The bytes that a quantized model takes, in memory and in files, and the fewest that it could."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.layers import BYTES_PER_SCALE, CATALOG
from tinytorch.transforms.quantize.saving import load_quantized, save_quantized


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model as floats and quantized, and the fewest that they could be.

    `held` adds up the arrays that the model says it has. `traced` is what Python's allocators gave
    out for a new copy and did not get back, so also whatever is held without being said; objects
    of Python are in it. `file` was written by save_quantized, read back and found to compute the
    same; `plain_file` is a checkpoint of what is held, as the comparer writes it.
    """

    float_held: int
    float_file: int
    held: int
    traced: int
    file: int
    plain_file: int
    ideal: int

    @property
    def shrinkage(self) -> float:
        return self.float_held / self.held

    @property
    def file_shrinkage(self) -> float:
        return self.float_file / self.file

    @property
    def share_held(self) -> float:
        """Give how much of the ideal shrinkage is reached."""
        return self.ideal / self.held

    @property
    def share_of_file(self) -> float:
        return self.ideal / self.file

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def measure_sizes(workload: Workload, transform: Quantize) -> Sizes:
    plan = transform.plan(workload)
    transform.apply(workload, plan)  # what is loaded or kept on first use is not the model's
    gc.collect()
    tracemalloc.start()
    model = transform.apply(workload, plan)
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        written = save_quantized(path, model)
        file_bytes = path.stat().st_size
        _check_file(path, workload, model, written)
        plain_file, float_file = (_checkpoint_bytes(path, each) for each in (model, workload.model))
    return Sizes(
        float_held=held_bytes(workload.model),
        float_file=float_file,
        held=held_bytes(model),
        traced=traced,
        file=file_bytes,
        plain_file=plain_file,
        ideal=ideal_bytes(workload.model, plan),
    )


def held_bytes(model: Any) -> int:
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


def ideal_bytes(model: Any, plan: Plan) -> int:
    """Count the fewest bytes for a model, from the shapes of its layers.

    Every weight of a linear layer, a convolution, a table and a tied head counts as quantized, also
    where the plan leaves it alone: one byte for each number, or half of one where the plan has
    INT4, and four for each scale, of which there is one per output (per row of a table), or per
    group and output. A weight that is shared counts once. Static inputs have a scale and a zero
    point, four bytes each. Biases, norms and everything else take what they take as floats. There
    is no padding, no sums, no header.
    """
    settings = {step.layer: step.settings for step in plan.steps}
    total = held_bytes(model) + 8 * sum("input_scale" in each for each in settings.values())
    seen: set[int] = set()
    for path, layer in model.named_modules():
        entry = CATALOG.get(type(layer))
        if entry is None or id(entry.weight(layer)) in seen:
            continue
        weight = entry.weight(layer)
        seen.add(id(weight))
        inputs, outputs = entry.matrix(weight.data).shape
        chosen = settings.get(path, {})
        groups = inputs // chosen["group_size"] if chosen.get("group_size") else 1
        values = inputs * outputs * chosen.get("bits", 8) // 8
        total += values + groups * outputs * BYTES_PER_SCALE - weight.data.nbytes
    return total


def _check_file(path: Path, workload: Workload, model: Any, written: int) -> None:
    """End it all unless the file has the size that was told, and gives the same model back."""
    loaded, _ = load_quantized(path, workload.model)
    with no_grad():
        outputs = [each(*workload.inputs).data for each in (model, loaded)]
    if written != path.stat().st_size or not np.array_equal(*outputs):
        raise SystemExit(f"{workload.name}: the file does not give back what was saved")


def _checkpoint_bytes(path: Path, model: Any) -> int:
    save_checkpoint(path, model)
    return path.stat().st_size

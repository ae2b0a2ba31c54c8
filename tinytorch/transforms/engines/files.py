"""The files of an engine: what is written, how a program without TinyTorch runs them, the check."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tinytorch.codec import Coded
from tinytorch.errors import CheckpointError, ModelError
from tinytorch.measure.child_process import end_child, last_words, start_child
from tinytorch.measure.environment import instruction_sets

SIGNATURE, PROGRAM = "signature.json", "run.py"
ONNX, IR, WEIGHTS, PACKAGE = "model.onnx", "model.xml", "model.bin", "model.pt2"
FILES = {"onnxruntime": (ONNX,), "openvino": (IR, WEIGHTS), "aoti": (PACKAGE,)}
"""The way of opening -> the engine's files; the first is the one that is opened."""
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "aoti": "AOTInductor"}
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "aoti": "torch"}
COMPILED = ("aoti",)
"""Files that run on the instruction sets of the machine that made them alone."""
CHECK_LIMIT_S = 300.0


@dataclass(frozen=True)
class Argument(Coded):
    """A tensor among the arguments; a size is None where the axis is open."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name} {self.dtype} ({sizes})"

    def why_not(self, tensor: Any) -> str:
        """Return why a tensor cannot be this argument, or ""."""
        sizes = tuple(tensor.shape)
        fits = len(sizes) == len(self.shape) and all(
            wanted in (None, size) for size, wanted in zip(sizes, self.shape, strict=True)
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        return "" if fits and dtype == self.dtype else f"{dtype} {sizes}"

    def opened(self, axes: tuple[int, ...]) -> Argument:
        """Return the argument with these axes open, as far as it has them."""
        shape = tuple(None if axis in axes else size for axis, size in enumerate(self.shape))
        return Argument(self.name, self.dtype, shape)


def open_axes(arguments: Sequence[Argument]) -> Iterator[tuple[int, ...]]:
    """Yield the axes that may be open: batch and sequence, the batch alone.

    The batch is an axis 0 that all inputs share. A sequence is an axis 1 that all inputs share,
    where one of them holds whole numbers, as tokens are.
    """
    shapes = [each.shape for each in arguments]
    if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
        return
    lengths = {shape[1] for shape in shapes if len(shape) > 1}
    has_tokens = any(len(each.shape) == 2 and "int" in each.dtype for each in arguments)
    if len(lengths) == 1 and has_tokens:
        yield 0, 1
    yield (0,)


# ---------------------------------------------------------------- writing and reading


def write_about(folder: Path, kind: str, fields: Mapping[str, Any], program: str) -> None:
    """Write the signature of the call, the hashes of the files, and the program that runs them."""
    about = {
        "engine": kind,
        "made_with": version(PACKAGES[kind]),
        "compiled_for": list(instruction_sets()) if kind in COMPILED else [],
        "sha256": {name: sha256_of(folder / name) for name in FILES[kind]},
        **fields,
    }
    (folder / SIGNATURE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    (folder / PROGRAM).write_text(program, "utf-8")


def check_files(folder: Path, kind: str, digests: Mapping[str, str]) -> None:
    """Raise unless the files of an engine are there, as they were written."""
    for name in FILES[kind]:
        if not (folder / name).is_file():
            raise CheckpointError(f"{name} is missing")
        if sha256_of(folder / name) != digests[name]:
            raise CheckpointError(f"{name} is damaged: it is not what was saved")


def why_other_version(kind: str, made_with: str) -> str:
    """Return that files were made with another version of the engine than is here, or ""."""
    package, here = PACKAGES[kind], version(PACKAGES[kind])
    if not made_with or made_with == here:
        return ""
    return f"it was made with {package} {made_with}, and this is {package} {here}"


def sha256_of(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert_onnx(folder: Path) -> None:
    """Write OpenVINO's own files beside an ONNX file, with the same numbers."""
    import openvino

    openvino.save_model(
        openvino.Core().read_model(str(folder / ONNX)), str(folder / IR), compress_to_fp16=False
    )


# ---------------------------------------------------------------- running the files without us

OPENING = {
    "onnxruntime": (
        "import onnxruntime",
        "options = onnxruntime.SessionOptions()\n"
        "options.add_session_config_entry('session.force_spinning_stop', '1')\n"
        "model = onnxruntime.InferenceSession(FILE, options, providers=['CPUExecutionProvider'])\n"
        "KNOWN = {each.name for each in model.get_inputs()}  # some inputs change nothing",
        "given = {name: value for name, value in inputs.items() if name in KNOWN}\n"
        "    return model.run(None, given)",
    ),
    "openvino": (
        "import openvino",
        "SETTINGS = {'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'PRECISION'}\n"
        "model = openvino.Core().compile_model(FILE, 'CPU', SETTINGS)\n"
        "KNOWN = {each.any_name for each in model.inputs}  # some inputs change nothing",
        "given = {name: value for name, value in inputs.items() if name in KNOWN}\n"
        "    found = model(given)\n"
        "    return [found[port] for port in model.outputs]",
    ),
    "aoti": (
        "import torch",
        "model = torch._inductor.aoti_load_package(FILE)",
        "return [each.numpy() for each in model(*map(torch.from_numpy, inputs.values()))]",
    ),
}
"""The way of opening -> what a program imports, how it opens the file as it was measured, and how
it calls it. PRECISION stands for the precision in which it computes."""


def program_text(
    kind: str, inputs: Sequence[Argument], outputs: Sequence[str], precision: str = "f32"
) -> str:
    """Return a program that runs the files of an engine without TinyTorch."""
    imported, opened, called = OPENING[kind]
    opened = opened.replace("PRECISION'", f"{precision}'")
    example = "".join(
        f"    {each.name!r}: np.zeros({[size or 1 for size in each.shape]}, np.{each.dtype}),\n"
        for each in inputs
    )
    return f'''"""Run the model in {NAMES[kind]}, without TinyTorch."""

from pathlib import Path

import numpy as np
{imported}

FILE = str(Path(__file__).with_name({FILES[kind][0]!r}))
OUTPUTS = {list(outputs)!r}
EXAMPLE = {{
{example}}}
{opened}


def run(inputs):
    """Return the outputs as a list; `inputs` has an array for each name of EXAMPLE, in order."""
    {called}


if __name__ == "__main__":
    for name, value in zip(OUTPUTS, run(EXAMPLE), strict=True):
        print(name, value.shape, value.dtype)
'''


CALL = """\
import runpy, sys
import numpy as np

sys.modules["tinytorch"] = None
program, given, made = sys.argv[1:]
run = runpy.run_path(program)["run"]
arrays = np.load(given)
for place in range(int(arrays["count"])):
    prefix = f"{place}:"
    names = [name for name in arrays.files if name.startswith(prefix)]
    found = run({name.removeprefix(prefix): arrays[name] for name in names})
    np.savez(f"{made}{place}.npz", *found)
"""


def run_files(
    folder: Path, calls: Sequence[Mapping[str, np.ndarray[Any, Any]]]
) -> list[list[np.ndarray[Any, Any]]]:
    """Call what was written in a fresh process that cannot import TinyTorch.

    Return the outputs of each call; raise ModelError where the program fails.
    """
    with TemporaryDirectory(prefix="tinytorch-") as scratch:
        given = Path(scratch) / "given.npz"
        arrays: dict[str, Any] = {
            f"{at}:{name}": each for at, call in enumerate(calls) for name, each in call.items()
        }
        np.savez(given, **arrays, count=np.asarray(len(calls)))
        words = [sys.executable, "-c", CALL, str(folder / PROGRAM), str(given), f"{scratch}/made"]
        child = start_child(words, purpose="to check the files", stdout=PIPE, stderr=PIPE)
        try:
            _, said = child.communicate(timeout=CHECK_LIMIT_S)
        except TimeoutExpired as error:
            raise ModelError(
                f"{folder / PROGRAM} did not answer within {CHECK_LIMIT_S:g} s"
            ) from error
        finally:
            end_child(child)
        if child.returncode:
            told = last_words(said.decode("utf-8", "replace")) or f"exit code {child.returncode}"
            raise ModelError(f"{folder / PROGRAM} failed in a fresh process: {told}")
        return [_outputs(Path(f"{scratch}/made{place}.npz")) for place in range(len(calls))]


def _outputs(path: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(path) as found:
        return [found[f"arr_{place}"] for place in range(len(found.files))]

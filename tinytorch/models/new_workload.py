"""The text of a new workload file: inputs, calibration and `evaluate` to fill in, and it runs."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from types import ModuleType
from typing import Any

from tinytorch.errors import TargetError, TinyTorchError, first_line
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.targets import HF, import_place, load_workload
from tinytorch.models.workload import Workload, batch_size, call_model

FACTORY = "make"
EXAMPLES = 8
NUMBER_OF_A_CLASS = 16
"""What stands for a number that a class needs and that is not known."""
SHAPES = ((16,), (64,), (128,), (256,), (512,), (768,), (1024,), (3, 224, 224), (3, 32, 32))
"""Shapes of an example that are tried where the first layer does not tell."""

HEAD = '''\
"""A workload: a model, what it is called with, and how good it is.

    tinytorch profile {file}:{factory}      where its time and memory go
    tinytorch optimize {file}:{factory}     what makes it faster at the same accuracy

Lines marked TODO are yours to fill in; the file runs as it stands.
"""
'''

TORCH = '''
import torch
from torch import nn

from tinytorch import Workload

FEATURES, CLASSES = 64, 10


def examples(count, seed):
    """Return inputs and labels. TODO: your data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    rule = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    return x, (x @ rule).argmax(1)


def trained():
    """Return a model. TODO: yours, with its weights: model.load_state_dict(torch.load(...))."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(512, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, labels = examples(4000, seed=1)
    for start in [*range(0, 4000, 200)] * 2:
        optimizer.zero_grad()
        rows = slice(start, start + 200)
        nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval()


def evaluate(model):
    """Return a score per held-out example, higher is better: here 1 for right, 0 for wrong.

    The examples and their order are always the same. To decide about a drop of 1% takes some
    hundreds of them, or thousands where predictions change.
    """
    x, labels = examples(4000, seed=2)
    with torch.no_grad():
        return (model(x).argmax(1) == labels).float().numpy()


def make():
    """Return the workload."""
    x, _ = examples(32, seed=3)
    return Workload(
        "yours",
        trained(),
        # One call: a tensor, a tuple of arguments, a dictionary of those given by name.
        inputs=x,
        # Some batches of training data, for what has to know typical values: INT8, for example.
        calibration=[examples(32, seed=seed)[0] for seed in (4, 5, 6)],
        evaluate=evaluate,
    )
'''

CORE = '''
import numpy as np

from tinytorch import Tensor, Workload, no_grad
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.optimizers import Adam

FEATURES, CLASSES = 64, 10


def examples(count, seed):
    """Return inputs and labels. TODO: your data."""
    x = np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(np.float32)
    rule = np.random.default_rng(0).standard_normal((FEATURES, CLASSES))
    return x, (x @ rule).argmax(1)


def trained():
    """Return a model. TODO: yours, with its weights."""
    layers = [Linear(FEATURES, 512, rng=0), ReLU(), Linear(512, 512, rng=1), ReLU()]
    model = Sequential(*layers, Linear(512, CLASSES, rng=2))
    loader = DataLoader(TensorDataset(*examples(4000, seed=1)), batch_size=100, seed=0)
    model.fit(loader, optimizer=Adam(model.parameters(), lr=1e-3), epochs=1)
    return model.eval()


def evaluate(model):
    """Return a score per held-out example, higher is better: here 1 for right, 0 for wrong.

    The examples and their order are always the same. To decide about a drop of 1% takes some
    hundreds of them, or thousands where predictions change.
    """
    x, labels = examples(4000, seed=2)
    with no_grad():
        return (model(Tensor(x)).data.argmax(1) == labels).astype(float)


def make():
    """Return the workload."""
    x, _ = examples(32, seed=3)
    return Workload(
        "yours",
        trained(),
        # One call: a tensor, a tuple of arguments, a dictionary of those given by name.
        inputs=Tensor(x),
        # Some batches of training data, for what has to know typical values: INT8, for example.
        calibration=[Tensor(examples(32, seed=seed)[0]) for seed in (4, 5, 6)],
        evaluate=evaluate,
    )
'''

TEXTS = """\
TEXTS = [
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife.",
    "However little known the feelings or views of such a man may be, this truth is well fixed.",
    "Mr. Bennet replied that he had not.",
]

"""

OF_YOURS = '''
{imports}

{definitions}
def inputs(seed=0):
    """Return what one call gets. TODO: typical inputs instead of {what}."""
{making}


def evaluate(model):
    """Return a score per held-out example, higher is better: 1 for right, 0 for wrong.

    The examples and their order are always the same. To decide about a drop of 1% takes some
    hundreds of them, or thousands where predictions change. TODO: fill in, and pass it below.
    """
    raise NotImplementedError


def make():
    """Return the workload."""
{model}
    return Workload(
        {name},
        model,
        # One call: a tensor, a tuple of arguments, a dictionary of those given by name.
        inputs=inputs(),
        # Some batches of training data, for what has to know typical values. TODO: yours.
        calibration=[inputs(seed) for seed in (1, 2, 3)],
        # Without this, outputs decide, and nothing is tried that changes more than roundings.
{judged}        # TODO: evaluate=evaluate,
    )
'''


JUDGED = """\
        # The target hf:PATH itself, without this file, is judged by the task of the model.
"""


def new_workload(file: Path, source: str = "") -> str:
    """Return the text of a workload file.

    `source` is what the model comes from: `hf:PATH` or `package.module:Class`; without it, the file
    has a small example, of PyTorch where that is installed.
    """
    head = HEAD.format(file=file.name, factory=FACTORY)
    if not source:
        return head + (CORE if find_spec("torch") is None else TORCH)
    parts = _of_folder(file, source) if source.startswith(HF) else _of_class(file, source)
    return head + OF_YOURS.format_map(parts)


def _indented(*lines: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in lines)


# ---------------------------------------------------------------- a folder of transformers


def _of_folder(file: Path, source: str) -> dict[str, str]:
    given = Path(source.removeprefix(HF))
    workload = load_workload(source)
    from tinytorch.models.hf_torch import TOKENIZERS, WEIGHTS, SentenceEncoder, has_any

    workload.run()
    kind = type(workload.model).__name__
    has_weights, has_texts = has_any(given, WEIGHTS), has_any(given, TOKENIZERS)
    is_pooled = isinstance(workload.model, SentenceEncoder)
    names = ["AutoTokenizer"] if has_texts else []
    names += [] if is_pooled else [kind, *([] if has_weights else ["AutoConfig"])]
    folder = dumps(str(given))
    if not given.is_absolute():
        inside = Path(os.path.relpath(given, file.absolute().parent)).as_posix()
        folder = f"Path(__file__).parent / {dumps(inside)}"
    made = f"{kind}.from_pretrained(FOLDER, local_files_only=True).eval()"
    if is_pooled:
        made = 'load_workload(f"hf:{FOLDER}").model  # the encoder and its pooling'
    elif not has_weights:
        made = f"{kind}(AutoConfig.from_pretrained(FOLDER, local_files_only=True)).eval()"
    if has_texts and "input_ids" in workload.keywords:
        definitions, making = _texts(workload)
    else:
        definitions, making = "", _random_by_name(workload)
    return {
        "imports": "\n".join(
            [
                "from pathlib import Path",
                "",
                "import torch",
                *([f"from transformers import {', '.join(sorted(names))}"] if names else []),
                "",
                f"from tinytorch import Workload{', load_workload' if is_pooled else ''}",
                "",
                f"FOLDER = {folder}",
            ]
        ),
        "definitions": definitions,
        "what": "these texts" if definitions else "random numbers",
        "making": making,
        "model": _indented(*([] if has_weights else ["torch.manual_seed(0)"]), f"model = {made}"),
        "name": dumps(given.absolute().name),
        "judged": JUDGED if workload.evaluate is not None else "",
    }


def _texts(workload: Workload) -> tuple[str, str]:
    from tinytorch.models.hf_torch import longest_text

    examples, length = len(workload.keywords["input_ids"]), longest_text(workload.model)
    names = tuple(workload.keywords)
    lines = [
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)",
        "tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token",
        f"texts = [TEXTS[(seed + each) % len(TEXTS)] for each in range({examples})]",
        f'settings = {{"truncation": True, "max_length": {length}, "return_tensors": "pt"}}',
        "encoded = tokenizer(texts, padding=True, **settings)",
    ]
    others = [name for name in names if name.startswith("decoder_")]
    lines += [f'encoded["{name}"] = {_random(workload.keywords[name])}' for name in others]
    lines.append(f"return {{name: encoded[name] for name in {dumps(names)}}}")
    return TEXTS, _indented(*lines)


def _random_by_name(workload: Workload) -> str:
    model = workload.model
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", 2)
    made = (
        f'    "{name}": {_random(value, vocabulary if name == "input_ids" else 2)},'
        for name, value in workload.keywords.items()
    )
    return _indented("torch.manual_seed(seed)", "return {", *made, "}")


def _random(value: Any, below: int = 2) -> str:
    """Return the expression that makes a tensor like this one."""
    shape = tuple(value.shape)
    if value.is_floating_point():
        return f"torch.randn{shape}"
    if below > 2:
        return f"torch.randint({below}, {shape})"
    return f"torch.full({shape}, {int(value.flatten()[0])})"


# ---------------------------------------------------------------- a class


def _of_class(file: Path, source: str) -> dict[str, str]:
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise TargetError(f"{source!r}: pass --from hf:PATH or --from package.module:Class")
    if place.endswith(".py") and Path(place).resolve().parent != file.resolve().parent:
        raise TargetError(f"{source}: write the file beside {Path(place).name}, which it imports")
    module = import_place(source, place)
    kind = getattr(module, name, None)
    if not callable(kind):
        raise TargetError(f"{source}: {place} has no class or function {name!r}")
    settings = _settings_of(kind)
    written = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    try:
        model = kind(**settings)
    except Exception as error:  # what a class raises for made-up settings
        raise TargetError(
            f"{source}: {name}({written}) raised {first_line(error)}; write a function without "
            f"arguments that makes one, and pass that"
        ) from error
    if not (callable(model) or hasattr(model, "forward")):
        raise TargetError(f"{source} makes a {type(model).__name__}, which is no model")
    adapter = adapter_for(model)
    shapes = _shapes_that_fit(adapter, model, source)
    is_torch = adapter.name == "pytorch"
    made = [_expression(adapter.example(shape, model), is_torch=is_torch) for shape in shapes]
    is_file = place.endswith(".py")
    imported = Path(place).stem if is_file else place
    paths, adding = ([], []) if is_file else _finding(module, file)
    first = ["import torch"] if is_torch else ["import numpy as np"]
    ours = "Workload" if is_torch else "Tensor, Workload"
    seeding = "torch.manual_seed(seed)" if is_torch else "rng = np.random.default_rng(seed)"
    todo = "  # TODO: the sizes of yours" if settings else ""
    weights = 'model.load_state_dict(torch.load("weights.pt"))' if is_torch else "its weights"
    return {
        "imports": "\n".join(
            [
                *paths,
                *first,
                "",
                *adding,
                f"from {imported} import {name}",
                f"from tinytorch import {ours}",
            ]
        ),
        "definitions": "",
        "what": "random numbers",
        "making": _indented(seeding, f"return ({', '.join(made)},)"),
        "model": _indented(
            *(["torch.manual_seed(0)"] if is_torch else []),
            f"model = {name}({written}){todo}",
            f"# TODO: {weights}",
            *(["model.eval()"] if hasattr(model, "eval") else []),
        ),
        "name": dumps(name),
        "judged": "",
    }


def _finding(module: ModuleType, file: Path) -> tuple[list[str], list[str]]:
    """Return the imports and the line with which a file finds a module; none if it does anyway."""
    if not getattr(module, "__file__", None):
        return [], []  # built into Python
    source, home = Path(str(module.__file__)).absolute(), file.absolute().parent
    root = source.parents[module.__name__.count(".") + (source.name == "__init__.py")]
    if root == home or root in {Path(each).absolute() for each in sys.path} - {Path.cwd()}:
        return [], []
    inside = Path(os.path.relpath(root, home)).as_posix()
    added = f"sys.path.insert(0, str(Path(__file__).parent / {dumps(inside)}))"
    return ["import sys", "from pathlib import Path", ""], [added]


def _settings_of(kind: Callable[..., Any]) -> dict[str, Any]:
    """Return values for what has no default: a number, by annotation where there is one."""
    values: Mapping[str, Any] = {"float": 0.1, "bool": False, "str": "", "int": NUMBER_OF_A_CLASS}
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = (each for each in parameters if each.default is each.empty and each.kind in named)
    return {each.name: values.get(_annotation(each), NUMBER_OF_A_CLASS) for each in found}


def _annotation(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")


def _shapes_that_fit(adapter: Adapter, model: Any, source: str) -> tuple[tuple[int, ...], ...]:
    """Return the shape of each argument with which the model runs, with an output per example."""
    from tinytorch.models.inputs import arguments_needed

    needed = arguments_needed(model)
    running: list[tuple[tuple[int, ...], ...]] = []
    with adapter.preserving(model), adapter.without_gradients():
        for shape in _candidates(adapter, model):
            batch = (EXAMPLES, *shape)
            try:
                inputs = tuple(adapter.example(batch, model) for _ in range(needed))
                output = call_model(model, *inputs)
            except TinyTorchError:
                continue
            except Exception:  # whatever a model raises for inputs that it cannot take
                continue
            running.append((batch,) * needed)
            if batch_size(inputs, output) == EXAMPLES:
                return running[-1]
    if running:
        return running[0]
    raise TargetError(
        f"{source}: no inputs are found that it runs with; write a function that returns "
        "`model, inputs`, which is a target: file.py:function"
    )


def _candidates(adapter: Adapter, model: Any) -> Iterator[tuple[int, ...]]:
    """Yield shapes of an example, those first that the first layer with weights asks for."""
    layers = adapter.modules(model)
    for path, layer in layers.items():
        if any(other.startswith(f"{path}.") or not path for other in layers if other != path):
            continue  # it has layers inside, whose sizes count
        if hasattr(layer, "num_embeddings"):
            yield (NUMBER_OF_A_CLASS,)
            break
        if hasattr(layer, "in_channels"):
            axes = len(getattr(layer, "kernel_size", (1, 1)))
            for side in (224, 64, 32, 28) if axes == 2 else (1024,) if axes == 1 else (16,):
                yield (layer.in_channels, *(side,) * axes)
            break
        width = getattr(layer, "in_features", None) or getattr(layer, "input_size", None)
        if isinstance(width, int):
            yield (width,)
            yield (NUMBER_OF_A_CLASS, width)
            break
    yield from SHAPES


def _expression(value: Any, *, is_torch: bool) -> str:
    shape = tuple(value.shape)
    if is_torch:
        return _random(value, int(value.max()) + 1)
    if value.data.dtype.kind == "f":
        return f"Tensor(rng.standard_normal({shape}).astype(np.float32))"
    return f"Tensor(rng.integers(0, {int(value.data.max()) + 1}, {shape}))"

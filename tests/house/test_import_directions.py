"""A module imports only from layers above its own, or from its own folder."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from project_files import package_modules

# From the bottom of the dependencies up. Packages in one row do not import each other.
LAYERS = [
    ["errors"],
    ["codec", "reading", "showing"],
    ["core"],
    ["measure"],
    ["formats"],
    ["models"],
    ["profiling"],
    ["comparison"],
    ["transforms"],
    ["records"],
    ["tuning"],
    ["benchmarking"],
    ["competition"],
    ["scale", "monitoring"],
    ["learning"],
    ["reporting"],
    ["perf"],
    ["cli", "pytest_plugin"],
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

# (importing module, imported module or package) -> why it may.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("tinytorch.showing", "tinytorch.reporting"): "the one lazy door: results show themselves",
}

# Whoever imports one of these pulls in torch.
TORCH_FAMILY = {"torch", "torchao", "torch_pruning", "transformers", "triton"}

# What only the `torch.py` of a transform imports.
BESIDE_TORCH = {
    "tinytorch.transforms.engines.export",
    "tinytorch.transforms.fuse_attention.chain",
    "tinytorch.transforms.fuse_attention.graph",
    "tinytorch.transforms.fuse_attention.kernel",
    "tinytorch.transforms.quantize.quantizers",
    "tinytorch.transforms.quantize.torch_layers",
    "tinytorch.transforms.remove_channels.groups",
    "tinytorch.transforms.static_generation.cache",
    "tinytorch.transforms.static_generation.decode_graph",
    "tinytorch.transforms.static_generation.generation",
    "tinytorch.transforms.static_generation.operators",
    "tinytorch.transforms.static_generation.triton_attention",
    "tinytorch.transforms.static_generation.triton_products",
}


class Import(NamedTuple):
    """One name that a module imports, wherever in the file that stands."""

    importer: str
    imported: str
    line: int

    def __str__(self):
        return f"{self.importer}, line {self.line}, imports {self.imported}"


def imports_of(name: str, tree: ast.AST, modules: dict[str, ast.Module]) -> Iterator[Import]:
    """Give every import below a node, those inside functions included."""
    for node in ast.walk(tree):
        for imported in imported_names(name, node, modules):
            yield Import(name, imported, node.lineno)


def imported_names(name: str, node: ast.AST, modules: dict[str, ast.Module]) -> list[str]:
    """Give the modules that one statement or call imports."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            source = absolute_source(name, node, modules)
            inner = [f"{source}.{alias.name}" for alias in node.names]
            # `from tinytorch import x` names what it takes from the lazy root.
            return [each if each in modules or source == "tinytorch" else source for each in inner]
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
            return [each.value for each in node.args if isinstance(each, ast.Constant)]
    return []


def absolute_source(name: str, node: ast.ImportFrom, modules: dict[str, ast.Module]) -> str:
    if not node.level:
        return node.module or ""
    is_package = any(other.startswith(f"{name}.") for other in modules)
    folder = name.split(".")[: len(name.split(".")) - node.level + is_package]
    return ".".join([*folder, *([node.module] if node.module else [])])


def is_exception(found: Import) -> bool:
    return any(
        found.importer == importer and f"{found.imported}.".startswith(f"{allowed}.")
        for importer, allowed in EXCEPTIONS
    )


def breaks_layers(found: Import) -> bool:
    """Say whether an import goes against the order of the layers."""
    importer, imported = found.importer.split("."), found.imported.split(".")
    if imported[0] != "tinytorch" or importer in (["tinytorch"], ["tinytorch", "__main__"]):
        return False  # The root hands out names of every layer, lazily.
    if imported == ["tinytorch", "__version__"]:
        return False
    if len(imported) == 1 or imported[1] not in RANK:
        return importer[1] not in LAYERS[-1]  # What the root hands out may be of any layer.
    return importer[1] != imported[1] and RANK[importer[1]] <= RANK[imported[1]]


def breaks_torch_rule(found: Import) -> bool:
    """Say whether torch is imported outside of the files that are made for it."""
    if found.imported.split(".")[0] not in TORCH_FAMILY:
        return False
    made_for_torch = (
        found.importer.endswith(("_torch", ".torch"))
        or found.importer.startswith("tinytorch.models.pytorch")
        or found.importer in BESIDE_TORCH
    )
    return not made_for_torch


def all_imports(modules: dict[str, ast.Module]) -> list[Import]:
    return [each for name, tree in modules.items() for each in imports_of(name, tree, modules)]


def imports_while_loading(name: str, modules: dict[str, ast.Module]) -> set[str]:
    """Give the modules of the package that must be loaded before this one is."""

    def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from statements(node.orelse)
                continue
            yield node
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from statements(getattr(node, field, []))

    return {
        imported
        for node in statements(modules[name].body)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for imported in imported_names(name, node, modules)
        if imported in modules and imported != name
    }


def find_cycle(modules: dict[str, ast.Module]) -> list[str]:
    """Give the modules of one import cycle, in order, or nothing."""
    needs = {name: imports_while_loading(name, modules) for name in modules}
    finished: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for needed in sorted(needs[name]):
            if cycle := search(needed, [*path, name]):
                return cycle
        finished.add(name)
        return []

    return next((cycle for name in sorted(modules) if (cycle := search(name, []))), [])


def parsed(sources: dict[str, str]) -> dict[str, ast.Module]:
    return {name: ast.parse(source) for name, source in sources.items()}


def test_layers_are_imported_downwards_only():
    found = all_imports(package_modules())
    assert [str(each) for each in found if breaks_layers(each) and not is_exception(each)] == []


def test_torch_is_imported_only_where_it_belongs():
    found = all_imports(package_modules())
    assert [str(each) for each in found if breaks_torch_rule(each) and not is_exception(each)] == []


def test_no_module_needs_itself_to_load():
    assert find_cycle(package_modules()) == []


def test_every_package_has_a_layer():
    folders = {name.split(".")[1] for name in package_modules() if "." in name}
    assert folders - {"__main__"} <= RANK.keys()


def test_every_exception_is_still_needed_and_explained():
    broken = [each for each in all_imports(package_modules()) if breaks_layers(each)]
    broken += [each for each in all_imports(package_modules()) if breaks_torch_rule(each)]
    used = {
        (importer, allowed)
        for importer, allowed in EXCEPTIONS
        for each in broken
        if each.importer == importer and f"{each.imported}.".startswith(f"{allowed}.")
    }
    assert used == EXCEPTIONS.keys()
    assert all(EXCEPTIONS.values())


@pytest.mark.parametrize(
    ("importer", "source", "breaks"),
    [
        ("tinytorch.core.tensor", "from tinytorch.errors import ShapeError", False),
        ("tinytorch.core.tensor", "from tinytorch.core import autograd", False),
        ("tinytorch.core.tensor", "import numpy", False),
        ("tinytorch.core.tensor", "import tinytorch.measure", True),
        (
            "tinytorch.core.tensor",
            "def f():\n    from tinytorch.measure import timing as clocks",
            True,
        ),
        ("tinytorch.core.tensor", "from tinytorch import measure", True),
        ("tinytorch.core.tensor", "from ..measure import clocks", True),
        ("tinytorch.core.tensor", "from . import autograd", False),
        ("tinytorch.core.tensor", "importlib.import_module('tinytorch.cli.main')", True),
        ("tinytorch.measure.timing", "from tinytorch import Tensor", True),
        ("tinytorch.measure.timing", "from tinytorch import __version__", False),
        ("tinytorch.measure.timing", "import tinytorch", True),
        ("tinytorch.cli.tour", "import tinytorch", False),
        ("tinytorch.transforms.prune", "from tinytorch.transforms.support import x", False),
        ("tinytorch.profiling.timer", "from tinytorch.perf import x", True),
        ("tinytorch.profiling.timer", "from tinytorch.comparison import x", True),
        ("tinytorch.comparison.compare", "from tinytorch.profiling import x", False),
        ("tinytorch.scale.app", "from tinytorch.monitoring import x", True),
        ("tinytorch", "from tinytorch.cli.main import main", False),
    ],
)
def test_the_layer_check_sees(importer, source, breaks):
    modules = parsed({importer: source, "tinytorch.measure": "", "tinytorch.core.autograd": ""})
    (found,) = imports_of(importer, modules[importer], modules)
    assert breaks_layers(found) is breaks


@pytest.mark.parametrize(
    ("importer", "breaks"),
    [
        ("tinytorch.models.pytorch", False),
        ("tinytorch.models.pytorch_memory", False),
        ("tinytorch.transforms.quantize.torch", False),
        ("tinytorch.transforms.quantize.quantizers", False),
        ("tinytorch.transforms.quantize", True),
        ("tinytorch", True),
    ],
)
def test_the_torch_check_sees(importer, breaks):
    assert breaks_torch_rule(Import(importer, "torch.nn", 1)) is breaks


def test_the_cycle_check_sees_a_cycle():
    modules = parsed(
        {
            "tinytorch.core.a": "import tinytorch.core.b",
            "tinytorch.core.b": "try:\n    x\nexcept OSError:\n    from tinytorch.core import a",
        }
    )
    assert find_cycle(modules) == ["tinytorch.core.a", "tinytorch.core.b", "tinytorch.core.a"]


def test_a_late_import_is_no_cycle():
    modules = parsed(
        {
            "tinytorch.core.a": "import tinytorch.core.b",
            "tinytorch.core.b": "def f():\n    import tinytorch.core.a",
            "tinytorch.core.c": "if TYPE_CHECKING:\n    import tinytorch.core.c",
        }
    )
    assert find_cycle(modules) == []

import json
import sys

import pytest

from tinytorch.errors import TargetError
from tinytorch.models.targets import load_workload

FACTORIES = """
from tinytorch import Tensor, Workload
from tinytorch.core.layers import Linear
from neighbour import WIDTH

def pair():
    return Linear(WIDTH, 2), Tensor([[1.0, 2.0, 3.0]])

def several_inputs():
    return (lambda a, b: a + b), (1, 2)

def workload():
    return Workload("mine", Linear(WIDTH, 2), (Tensor([[1.0, 2.0, 3.0]]),))

def raises():
    raise RuntimeError("no data today")

def number():
    return 7

NOT_A_FUNCTION = 1
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    path = tmp_path / "my_models.py"
    path.write_text(FACTORIES)
    return path


@pytest.mark.parametrize("factory", ["pair", "workload"])
def test_a_file_and_a_function_give_a_workload(file, factory):
    assert load_workload(f"{file}:{factory}").run().shape == (1, 2)


def test_a_tuple_of_inputs_is_several_arguments(file):
    assert load_workload(f"{file}:several_inputs").run() == 3


def test_a_module_and_a_function_give_a_workload(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    assert load_workload("my_models:workload").name == "mine"


def test_a_built_in_name_gives_a_model_of_the_zoo():
    assert load_workload("mlp").name == "mlp"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("resnet", "'resnet' is not a target: .*mlp, cnn, gpt"),
        ("cn", "'cn' is not a target: did you mean 'cnn'"),
        (":factory", "is not a target"),
        ("{file}", r"is not a target: name the function .*my_models\.py:make$"),
        ("no_such_file.py:make", "there is no file no_such_file.py"),
        ("no.such.module:make", "no.such does not import|no.such.module does not import"),
        ("{file}:missing", "no function 'missing'; it has pair, several_inputs, .*, number$"),
        ("{file}:NOT_A_FUNCTION", "has no function 'NOT_A_FUNCTION'"),
        ("{file}:raises", r"raises\(\) raised RuntimeError: no data today"),
        ("{file}:number", "returned a int; it must return a Workload, or a model and its inputs"),
    ],
)
def test_a_bad_target_says_what_is_wrong(file, target, message):
    with pytest.raises(TargetError, match=message):
        load_workload(target.format(file=file))


def test_a_file_that_does_not_import_is_named_with_the_reason(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_package\n")
    with pytest.raises(TargetError, match=r"broken\.py does not import: ModuleNotFoundError"):
        load_workload(f"{path}:make")


def test_of_many_functions_some_are_named(tmp_path):
    file = tmp_path / "many.py"
    file.write_text("\n".join(f"def f{number}(): pass" for number in range(40)))
    with pytest.raises(TargetError, match=r"it has f0, f1, .*, f9 and 30 more$"):
        load_workload(f"{file}:missing")


def test_inputs_in_a_dictionary_go_in_by_name(tmp_path):
    file = tmp_path / "named.py"
    file.write_text("def make(): return (lambda *, x: x + 1), {'x': 2}")
    workload = load_workload(f"{file}:make")
    assert workload.inputs == ()
    assert workload.run() == 3


def test_files_of_two_folders_import_their_own_neighbours(tmp_path):
    for name, width in (("old", 3), ("new", 5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper_of_target.py").write_text(f"WIDTH = {width}", "utf-8")
        (folder / "model.py").write_text(
            "from helper_of_target import WIDTH\n\n"
            "def make():\n    return (lambda x: [x] * WIDTH), 1\n",
            "utf-8",
        )
    widths = [
        len(load_workload(f"{tmp_path / name}/model.py:make").run())
        for name in ("old", "new", "old")
    ]
    assert widths == [3, 5, 3]


def test_a_module_in_the_working_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "bench_in_folder.py").write_text("def make():\n    return abs, -1\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_workload("bench_in_folder:make").run() == 1
    assert sys.path == before


@pytest.mark.parametrize(
    "source", ["import sys\nsys.exit(0)\n", "def make():\n    raise SystemExit(3)\n"]
)
def test_a_target_that_exits_is_an_error(tmp_path, source):
    (tmp_path / "leaving.py").write_text(source, "utf-8")
    with pytest.raises(TargetError, match="SystemExit"):
        load_workload(f"{tmp_path}/leaving.py:make")


SOURCE = "def f(x):\n    return x\n\ndef factory():\n    return f, 1\n"


def test_the_module_of_a_file_can_be_found_by_its_name(tmp_path):
    file = tmp_path / "my_own_model.py"
    file.write_text(SOURCE)
    model = load_workload(f"{file}:factory").model
    assert sys.modules[model.__module__].f is model
    assert load_workload(f"{file}:factory").model is not model  # it was run again
    assert model.__module__ == "my_own_model"


def test_a_file_does_not_take_the_place_of_another_module(tmp_path):
    file = tmp_path / "json.py"
    file.write_text(SOURCE)
    model = load_workload(f"{file}:factory").model
    assert model.__module__ == "target_json"
    assert sys.modules["json"] is json


def test_a_file_that_fails_leaves_no_module_behind(tmp_path):
    file = tmp_path / "failing_model.py"
    file.write_text("raise ValueError('no')")
    with pytest.raises(TargetError, match="ValueError: no"):
        load_workload(f"{file}:factory")
    assert "failing_model" not in sys.modules

import ast
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from optimized_stacks import entry_of, recommended, recommending

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import load_zoo
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.tuning.attempt import Settings
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.saving import snippet

STACK = ("int8-weights", "fused-layers")


def small_workload(name="small"):
    model = Sequential(Linear(8, 16, rng=0), ReLU(), Linear(16, 4, rng=0))
    return Workload(name, model, (Tensor(np.ones((2, 8), np.float32)),))


def run(program, folder):
    (folder / "program.py").write_text(program, "utf-8")
    return subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_program_for_a_built_in_target_runs(tmp_path):
    settings = Settings(budget_s=0.1, max_accuracy_drop=0.02, seed=3)
    optimization = recommending(load_zoo("mlp"), *STACK, settings=settings)
    program = snippet(optimization, target="mlp", saved="best")
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_program_for_a_file_runs(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "from tinytorch import Tensor\n"
        "from tinytorch.core.layers import Linear\n"
        "def build():\n"
        "    return Linear(8, 8, rng=0), Tensor(np.ones((2, 8), np.float32))\n"
    )
    settings = Settings(budget_s=0.1)
    optimization = recommending(small_workload(), "int8-dynamic", settings=settings)
    done = run(snippet(optimization, target="own.py:build"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_transforms_come_in_the_order_of_the_stack_with_unusual_settings_only():
    stack = entry_of(
        Prune(sparsity=0.25), Quantize(mode="weight_only", keep=("layers.2",)), name="both"
    )
    text = snippet(recommending(small_workload(), stack), target="mlp")
    call = 'Quantize(mode="weight_only", keep=("layers.2",))'
    assert f"for transform in [Prune(sparsity=0.25), {call}]:" in text
    assert "from tinytorch.transforms.prune import Prune\n" in text


def test_a_transform_as_usual_has_no_settings():
    text = snippet(recommending(small_workload(), entry_of(Prune())))
    assert "[Prune()]" in text


def test_long_stacks_take_a_line_for_each_transform():
    stack = entry_of(*(Prune(sparsity=0.1 + x, scope="layer") for x in (0.1, 0.2, 0.3)))
    text = snippet(recommending(small_workload(), stack))
    assert text.count("\n    Prune(sparsity=") == 3
    assert max(map(len, text.splitlines())) <= 100
    assert ast.parse(text)


def test_a_built_in_workload_is_known_by_its_name():
    assert 'load_workload("mlp")' in snippet(recommending(load_zoo("mlp"), "int8-weights"))


def test_the_target_that_was_kept_comes_before_a_name():
    kept = replace(recommending(load_zoo("mlp"), "int8-weights"), target="own.py:make")
    found = recommended(Optimization.from_dict(kept.to_dict()))
    assert 'load_workload("own.py:make")' in snippet(found)
    assert 'load_workload("other.py:make")' in snippet(found, target="other.py:make")


def test_without_a_target_it_says_where_to_put_ones_own():
    text = snippet(recommending(small_workload(), "int8-weights"))
    assert "# Put your own here" in text
    assert ast.parse(text)


def test_names_and_places_cannot_become_code():
    workload = small_workload(name='small\nimport os  """')
    optimization = recommending(workload, "int8-weights")
    text = snippet(optimization, target='a"\nimport sys', saved='b"\nimport sys')
    imported = [
        name.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for name in node.names
    ]
    assert imported == []


def test_settings_of_the_comparison_are_those_of_the_optimization():
    text = snippet(recommending(small_workload(), "int8-weights"))
    assert "budget_s=10.0))" in text
    settings = Settings(budget_s=0.5, max_accuracy_drop=0.0, seed=2)
    own = snippet(recommending(small_workload(), "int8-weights", settings=settings))
    assert "budget_s=0.5, margin=0.0, seed=2))" in own


def test_it_says_how_to_load_what_was_saved():
    text = snippet(recommending(small_workload(), "int8-weights"), saved="out/best")
    assert '# model = load_optimized("out/best", workload)' in text


def test_where_nothing_is_recommended_there_is_nothing_to_do_again():
    nothing = replace(recommending(small_workload(), "int8-weights"), attempts=())
    with pytest.raises(SettingError, match="nothing to do again"):
        snippet(nothing)

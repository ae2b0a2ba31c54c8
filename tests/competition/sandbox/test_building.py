"""A contender is the reference, changed by what was declared and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optimized_stacks import recommending

from tinytorch.competition.entry import Technique, files_below
from tinytorch.competition.sandbox.building import SIZE_OF_CODE, Built, build, bytes_below, prepare
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, TargetError
from tinytorch.models.zoo import WEIGHTS, build_mlp, load_zoo
from tinytorch.tuning.saving import save_optimized

CODE = Path(__file__).parent / "entry_code" / "models.py"
IMAGES = np.linspace(-1, 1, 3 * 784, dtype=np.float32).reshape(3, 784)
PROMPT = np.arange(16)


def built(event: str = "mlp_sprint", *techniques: str, **given: Any) -> Built:
    return build(Contender(event, tuple(map(Technique, techniques)), **given))


def test_without_techniques_it_is_the_reference() -> None:
    made = built()
    expected = load_zoo("mlp").model(Tensor(IMAGES)).data
    np.testing.assert_array_equal(made.forward(IMAGES), expected)
    assert made.plans == made.notes == ()
    assert made.count_bytes() == pytest.approx(
        (WEIGHTS / "mlp.safetensors").stat().st_size, rel=0.1
    )


def test_techniques_are_carried_out_in_their_order() -> None:
    made = built("mlp_sprint", "int8-dynamic", "fused-layers")
    assert [each["transform"] for each in made.plans] == ["Quantize", "FuseLayers"]
    reference = built()
    assert made.count_bytes() < 0.4 * reference.count_bytes()
    outputs = made.forward(IMAGES), reference.forward(IMAGES)
    assert not np.array_equal(*outputs)
    np.testing.assert_array_equal(*(each.argmax(-1) for each in outputs))


def test_a_technique_that_finds_nothing_is_a_note() -> None:
    made = built("mlp_sprint", "kv-cache", "fewer-layers")
    assert any(each.startswith("kv-cache found nothing to do") for each in made.notes)
    assert any(each.startswith("fewer-layers found nothing to do: ") for each in made.notes)


def test_the_cache_changes_how_text_is_written_and_not_the_text() -> None:
    plain, cached = built("transformer_decathlon"), built("transformer_decathlon", "kv-cache")
    with no_grad():
        np.testing.assert_array_equal(plain.generate(PROMPT, 5), cached.generate(PROMPT, 5))
        logits = plain.forward(PROMPT[None])
        assert plain.generate(PROMPT, 1) == logits[0, -1].argmax()


def test_weights_of_a_checkpoint_take_the_place_of_the_references(tmp_path: Path) -> None:
    model = build_mlp(3)
    save_checkpoint(tmp_path / "own.safetensors", model)
    made = built(weights=str(tmp_path / "own.safetensors"))
    np.testing.assert_array_equal(made.forward(IMAGES), model(Tensor(IMAGES)).data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best.safetensors", "best"])
def test_an_optimized_model_comes_from_its_file_or_folder(tmp_path: Path, name: str) -> None:
    workload = load_zoo("mlp")
    optimization = recommending(workload, "int8-dynamic")
    saved = save_optimized(optimization, tmp_path / name, workload=workload)
    made = built(weights=str(saved.path))
    np.testing.assert_array_equal(
        made.forward(IMAGES), built("mlp_sprint", "int8-dynamic").forward(IMAGES)
    )
    assert made.count_bytes() <= built("mlp_sprint", "int8-dynamic").count_bytes()


def test_a_file_that_holds_no_weights_is_said(tmp_path: Path) -> None:
    (tmp_path / "own.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        built(weights=str(tmp_path / "own.safetensors"))


def test_code_may_give_a_model() -> None:
    made = built(code=f"{CODE}:same")
    np.testing.assert_array_equal(made.forward(IMAGES), built().forward(IMAGES))


def test_code_may_give_a_function_and_is_not_asked_for_its_size() -> None:
    made = built("mlp_sprint", "a", code=f"{CODE}:by_hand")
    assert made.forward(IMAGES).shape == (3, 2)
    assert made.count_bytes() == 0


def test_how_code_is_sized_is_a_note_where_size_counts() -> None:
    assert built(code=f"{CODE}:by_hand").notes == ()
    for name in ("writer", "same"):  # a model is sized no differently, if code made it
        assert built("transformer_decathlon", code=f"{CODE}:{name}").notes == (SIZE_OF_CODE,)


def test_code_without_techniques_is_a_note() -> None:
    made = built("mlp_sprint", "a", code=f"{CODE}:only_reference")
    assert made.notes == (
        "only_reference() takes no techniques, so none of them can be switched off",
    )


def test_text_is_written_by_a_way_of_its_own_or_by_forward_passes() -> None:
    own = built("transformer_decathlon", code=f"{CODE}:writer")
    assert own.generate(PROMPT, 3).tolist() == [0, 1, 2]
    repeated = built("transformer_decathlon", code=f"{CODE}:next_letter")
    assert repeated.generate(PROMPT, 3).tolist() == [16, 17, 18]


def test_what_cannot_be_called_is_said(tmp_path: Path) -> None:
    (tmp_path / "own_code.py").write_text("def make(reference):\n    return 3\n")
    with pytest.raises(TargetError, match="what was made is a int; give a model"):
        built(code=f"{tmp_path}/own_code.py:make")
    with pytest.raises(TargetError, match="has no function 'other'"):
        built(code=f"{tmp_path}/own_code.py:other")


def test_earlier_runs_are_no_part_of_the_size(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_bytes(bytes(100))
    (tmp_path / "code.py").write_bytes(bytes(10))
    assert bytes_below(tmp_path) == 10
    assert bytes_below(tmp_path / "code.py") == 10


def test_all_that_code_may_read_counts_whatever_its_folder_is_called(tmp_path: Path) -> None:
    (tmp_path / "own" / "results").mkdir(parents=True)
    (tmp_path / "own" / "results" / "weights.bin").write_bytes(bytes(100))
    assert list(files_below(tmp_path)) == ["own/results/weights.bin"]
    assert bytes_below(tmp_path) == 100


@pytest.mark.parametrize("event", ["mlp_sprint", "transformer_decathlon"])
def test_preparing_needs_no_model(event: str) -> None:
    assert prepare(event) is None  # type: ignore[func-returns-value]

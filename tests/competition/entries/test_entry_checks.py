"""Everything that can be found against an entry offline, with its rule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_entries import a_code_entry, an_entry, write_manifest

from tinytorch.competition import entry_checks
from tinytorch.competition.entry import Entry, Technique, read_entry
from tinytorch.competition.entry_checks import check_entry
from tinytorch.competition.events import EVENTS
from tinytorch.competition.rules import Finding
from tinytorch.competition.techniques import TECHNIQUES
from tinytorch.core.checkpoints import read_arrays, write_arrays
from tinytorch.formats.weights_file import write_weights
from tinytorch.models.zoo import WEIGHTS
from tinytorch.transforms import compiled_kernels


def _check(entry: Entry, **options: Any) -> list[tuple[str, str]]:
    return [(each.rule, each.severity) for each in check_entry(entry, run=False, **options)]


def _with_weights(folder: Path, arrays: dict[str, Any], **changes: Any) -> Entry:
    write_manifest(folder, weights="w.safetensors", **changes)
    write_arrays(folder / "w.safetensors", arrays)
    return read_entry(folder)


@pytest.mark.parametrize("event", EVENTS)
def test_the_reference_itself_passes(event: str) -> None:
    assert check_entry(an_entry(event=event), run=False) == ()


def test_everything_that_is_wrong_is_told_at_once() -> None:
    entry = an_entry("pruned-sparse", "int8-dynamik", "compiled", "kv-cache", "int4-weights")
    assert _check(entry) == [
        ("E5", "fatal"),
        ("E3", "fatal"),
        ("E3", "fatal"),
        ("E3", "fatal"),
        ("E3", "warning"),
        ("A4", "fatal"),
    ]


@pytest.mark.parametrize("division", ["open", "learner"])
def test_pruning_is_for_the_other_divisions(division: str) -> None:
    assert _check(an_entry("pruned-sparse")) == [("E5", "fatal")]
    assert _check(an_entry("pruned-sparse", division=division)) == []


def test_a_precision_that_is_not_declared_is_fatal_in_closed_alone() -> None:
    (found,) = check_entry(an_entry("int8-dynamic"), run=False)
    assert (found.rule, found.is_fatal) == ("A4", True)
    assert found.seen == "int8-dynamic uses int8, and the entry declares float32"
    assert found.fix == 'write "precision": "int8"'
    assert _check(an_entry("int8-dynamic", division="open")) == [("A4", "warning")]
    assert _check(an_entry("int8-dynamic", precision="int8")) == []
    assert _check(an_entry("int8-dynamic", precision="int4")) == []


def test_the_least_precise_technique_counts() -> None:
    found = check_entry(an_entry("int8-dynamic", "fused-layers", "int4-weights"), run=False)
    assert [each.fix for each in found if each.rule == "A4"] == ['write "precision": "int4"']


def test_an_order_in_which_less_is_found_is_a_doubt() -> None:
    (found,) = check_entry(an_entry("fused-layers", "int8-static", precision="int8"), run=False)
    assert (found.severity, found.fix) == ("warning", "put int8-static first")
    (found,) = check_entry(an_entry("int8-static", "int8-weights", precision="int8"), run=False)
    assert found.seen == "int8-static and int8-weights are rivals"


def test_a_part_that_is_not_installed_is_told_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_kernels, "find_spec", lambda name: None)
    (found,) = check_entry(an_entry("compiled-kernels"), run=False)
    assert found.rule == "E8"
    assert found.fix == "in the folder of TinyTorch: pip install '.[fast]'"


def test_every_technique_passes_in_open() -> None:
    for name in TECHNIQUES:
        entry = an_entry(name, division="open", event="transformer_decathlon", precision="int4")
        assert _check(entry) == []


# ---------------------------------------------------------------- weights


def test_in_closed_weights_are_those_of_the_reference_bit_for_bit(tmp_path: Path) -> None:
    arrays, _ = read_arrays(WEIGHTS / "mlp.safetensors")
    same = {**arrays, "optimizer/step": np.zeros(1)}
    assert _check(_with_weights(tmp_path, same, division="closed")) == []
    name = next(iter(arrays))
    other = arrays[name].copy()
    other.flat[0] = np.nextafter(other.flat[0], np.float32(9))
    for changed in (
        {**arrays, name: other},
        {**arrays, name: arrays[name].astype(np.float64)},
        {**arrays, "more": other},
        {key: each for key, each in arrays.items() if key != name},
    ):
        (found,) = check_entry(_with_weights(tmp_path, changed, division="closed"), run=False)
        assert found.rule == "E4"
        assert f"1 of {len(arrays)} tensors differ" in found.seen
        assert _check(_with_weights(tmp_path, changed, division="open")) == []


def test_a_model_that_was_optimized_before_declares_techniques_in_closed(tmp_path: Path) -> None:
    write_manifest(tmp_path, weights="w.safetensors")
    arrays, _ = read_arrays(WEIGHTS / "mlp.safetensors")
    write_weights(tmp_path / "w.safetensors", arrays)
    (found,) = check_entry(read_entry(tmp_path), run=False)
    assert (found.rule, "declare the techniques" in found.fix) == ("E4", True)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 100, b"PK\x03\x04"])
def test_weights_in_another_format_are_not_loaded(tmp_path: Path, content: bytes) -> None:
    write_manifest(tmp_path, weights="w.bin", division="open")
    (tmp_path / "w.bin").write_bytes(content)
    (found,) = check_entry(read_entry(tmp_path), run=False)
    assert (found.rule, "cannot be read as safetensors" in found.seen) == ("E8", True)


# ---------------------------------------------------------------- code


def test_code_needs_trust(tmp_path: Path) -> None:
    entry = a_code_entry(tmp_path)
    assert _check(entry) == [("E6", "fatal")]
    assert _check(entry, trust=True) == []


def test_techniques_of_code_are_free_names_without_transforms(tmp_path: Path) -> None:
    mine = (Technique("my-own"), Technique("int8-dynamic"))
    assert _check(a_code_entry(tmp_path, techniques=mine), trust=True) == []
    both = (Technique("mine", (("Quantize", {}),)),)
    assert _check(a_code_entry(tmp_path, techniques=both), trust=True) == [("E3", "fatal")]


def test_an_entry_is_tried_only_when_nothing_fatal_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried: list[Entry] = []

    def try_entry(entry: Entry, **_: object) -> tuple[Finding, ...]:
        tried.append(entry)
        return (Finding("A1", "seen", "fix"),)

    monkeypatch.setattr(entry_checks, "try_entry", try_entry)
    assert [each.rule for each in check_entry(an_entry())] == ["A1"]
    assert [each.rule for each in check_entry(a_code_entry(tmp_path))] == ["E6"]
    assert [each.rule for each in check_entry(an_entry("int8-dynamic"))] == ["A4"]
    assert tried == [an_entry()]

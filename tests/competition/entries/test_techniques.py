"""What is declared is resolved, or refused with the reason."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project_files import ROOT

from tinytorch.competition.entry import EntryError, Technique
from tinytorch.competition.events import DIVISIONS
from tinytorch.competition.techniques import (
    KV_CACHE,
    TECHNIQUES,
    divisions_of,
    implied_precision,
    missing_parts,
    resolve,
    resolved,
    why_not_in,
)
from tinytorch.transforms import compiled_kernels
from tinytorch.transforms.plan import TorchTransform, Transform
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.quantize import Quantize
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.recipe import TRANSFORMS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(-2, 99) | st.text(max_size=8),
    lambda each: (
        st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=3), each, max_size=2)
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(
    ["mode", "bits", "keep", "sparsity", "ratio", "macs", "energy", "count", "goal", "backend"]
)


def test_transforms_are_allowed_by_what_their_classes_say() -> None:
    allowed = {name: divisions_of(each) for name, each in TRANSFORMS.items()}
    assert allowed["Quantize"] == allowed["FuseLayers"] == DIVISIONS
    assert allowed["Prune"] == allowed["SparseLayers"] == ("open", "learner")
    assert allowed["CompileModel"] == ()  # the references are models of TinyTorch


def test_a_transform_that_does_not_say_that_it_may_compete_is_not_allowed() -> None:
    class Silent(Transform):
        risk = "exact"

    class ForPyTorch(TorchTransform):
        risk, may_compete = "exact", True

    assert divisions_of(Silent) == divisions_of(ForPyTorch) == ()
    Silent.may_compete = True
    assert divisions_of(Silent) == DIVISIONS


def test_what_is_for_core_can_be_declared_and_has_a_division() -> None:
    for name, transforms in TECHNIQUES.items():
        assert resolve(Technique(name)) == transforms
        assert all(divisions_of(type(each)) for each in transforms)
    others = {each.name for each in CATALOG if "core" not in each.frameworks}
    assert not others & set(TECHNIQUES)


def test_the_documentation_lists_the_techniques_by_their_divisions() -> None:
    page = (ROOT / "docs" / "competition.md").read_text("utf-8")
    table = page.partition("| technique | closed | open, learner |")[2].partition("\n\n")[0]
    allowed = {}
    for row in table.splitlines()[2:]:
        names, closed, others = row.strip("|").split("|")
        assert others.strip() == "yes"
        allowed |= dict.fromkeys(re.findall(r"`([\w-]+)`", names), closed.strip() == "yes")
    assert allowed == {name: not why_not_in("closed", Technique(name)) for name in TECHNIQUES}


def test_what_the_catalog_calls_approximate_is_not_closed() -> None:
    for each in CATALOG:
        if "core" in each.frameworks:
            reason = why_not_in("closed", Technique(each.name))
            assert bool(reason) is (each.risk == "approximate")
            assert not why_not_in("open", Technique(each.name))


def test_the_reason_says_what_a_technique_does() -> None:
    pruned = Technique("mine", (("Prune", {"sparsity": 0.5}),))
    assert why_not_in("closed", pruned) == "mine sets weights to zero (Prune)"
    assert not why_not_in("learner", pruned)


def test_a_technique_of_ones_own_has_its_settings() -> None:
    mine = Technique("mine", (("Prune", {"keep": ["head"]}), ("Quantize", {"mode": "static"})))
    assert resolve(mine) == (Prune(keep=("head",)), Quantize(mode="static"))


@pytest.mark.parametrize(
    ("technique", "words"),
    [
        (Technique("int8-dynamik"), "no technique int8-dynamik; did you mean 'int8-dynamic'"),
        (Technique("xyzzy"), "there are fewer-channels"),
        (Technique("compiled"), "for models of PyTorch"),
        (Technique("a", (("CompileModel", {}),)), "CompileModel is for models of PyTorch"),
        (Technique("a", (("Quantise", {}),)), "did you mean 'Quantize'"),
        (
            Technique("a", (("os.system", {}),)),
            "there are RemoveChannels",
        ),
        (Technique("a", (("Quantize", {"mode": "x"}),)), "unknown mode 'x'"),
        (Technique("a", (("Quantize", {"wings": 2}),)), "no setting 'wings'; Quantize has mode "),
        (Technique("a", (("FuseLayers", {"bits": 2}),)), "FuseLayers has no settings"),
        (
            Technique("a", (("Prune", {"sparsity": []}),)),
            r"got \[\]; .* Prune has sparsity \(0.5\)",
        ),
        (Technique("a", (("RemoveChannels", {}),)), "say how much goes"),
        (Technique("int8-dynamic", (("FuseLayers", {}),)), "is a name of the catalog"),
        (Technique("kv-cache", (("FuseLayers", {}),)), "is a name of the catalog"),
        (Technique("compiled", (("FuseLayers", {}),)), "is a name of the catalog"),
    ],
)
def test_what_is_unknown_is_told(technique: Technique, words: str) -> None:
    with pytest.raises(EntryError, match=words) as caught:
        resolve(technique)
    assert caught.value.rule == "E3"


@settings(max_examples=100)
@given(
    st.sampled_from([name for name, each in TRANSFORMS.items() if divisions_of(each)]),
    st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_any_settings_give_a_transform_or_an_entry_error(name: str, given: dict[str, Any]) -> None:
    try:
        technique = Technique("mine", ((name, given),))
        found = resolve(technique)
    except EntryError:
        return
    assert [type(each).__name__ for each in found] == [name]
    assert resolve(resolved(technique)) == found


def test_resolving_what_is_resolved_changes_nothing() -> None:
    for name in TECHNIQUES:
        once = resolved(Technique(name))
        assert resolved(once) == once
    assert resolved(Technique(KV_CACHE)) == Technique(KV_CACHE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fused-layers", "float32"),
        (KV_CACHE, "float32"),
        ("int8-dynamic", "int8"),
        ("int8-static", "int8"),
        ("int8-weights", "int8"),
        ("int4-weights", "int4"),
        ("pruned-sparse", "float32"),
    ],
)
def test_the_least_precise_number_of_a_technique(name: str, expected: str) -> None:
    assert implied_precision(Technique(name)) == expected


def test_the_least_precise_of_several_transforms_counts() -> None:
    both = Technique("a", (("Quantize", {"mode": "weight_only", "bits": 4}), ("Quantize", {})))
    assert implied_precision(both) == "int4"


def test_a_part_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernels, "find_spec", lambda name: None)
    assert missing_parts(Technique("compiled-kernels")) == ("fast",)
    assert missing_parts(Technique("a", (("CompiledKernels", {"backend": "numpy"}),))) == ()
    assert missing_parts(Technique("fused-layers")) == ()

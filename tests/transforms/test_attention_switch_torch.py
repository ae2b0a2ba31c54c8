from types import SimpleNamespace

from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.torch import (
    implementation,
    switch_over,
    switchable,
    why_no_switch,
)


class Switch(nn.Module):
    """What transformers offers, without transformers."""

    def __init__(self, how="eager", **settings):
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=how, **settings)

    def set_attn_implementation(self, how):
        self.config._attn_implementation = how


def test_the_outermost_switches_are_found():
    inner = Switch()
    outer = Switch()
    outer.add_module("inner", inner)
    model = nn.Sequential(nn.Linear(2, 2), outer, Switch("sdpa"))
    assert [*switchable(model)] == ["1", "2"]
    assert [*switchable(outer)] == [""]
    assert switchable(nn.Linear(2, 2)) == {}


def test_a_part_by_hand_makes_it_by_hand():
    outer = Switch("sdpa")
    assert implementation(outer) == "sdpa"
    outer.add_module("inner", Switch("eager"))
    assert implementation(outer) == "eager"
    assert implementation(nn.Linear(2, 2)) == ""


def test_switching_is_in_place():
    model = nn.Sequential(Switch(), Switch())
    assert switch_over(model, ("1",)) is model
    assert [each.config._attn_implementation for each in model] == ["eager", "sdpa"]


def test_reasons_against_it():
    assert why_no_switch(Switch(), {}) == ""
    assert why_no_switch(Switch(attn_logit_softcapping=None), {"output_attentions": False}) == ""
    assert "scores are capped" in why_no_switch(Switch(attn_logit_softcapping=50.0), {})
    assert "output_attentions=True" in why_no_switch(Switch(output_attentions=True), {})
    assert "output_attentions=..." in why_no_switch(Switch(), {"output_attentions": True})
    mask = torch.ones(2)
    assert "head_mask=..." in why_no_switch(Switch(), {"head_mask": mask})
    rigid = Switch()
    rigid._supports_sdpa = False
    assert "does not support 'sdpa'" in why_no_switch(rigid, {})

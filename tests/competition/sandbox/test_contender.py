"""What a judge and a contender say to each other."""

from tinytorch.competition.entry import Technique
from tinytorch.competition.sandbox.contender import Contender, Limits


def test_a_contender_without_anything_is_the_reference():
    assert Contender("mlp_sprint") == Contender(
        "mlp_sprint", techniques=(), weights=None, code=None
    )
    assert Contender("mlp_sprint") != Contender("mlp_sprint", (Technique("fused-layers"),))


def test_one_process_is_allowed():
    assert Limits().processes == 1

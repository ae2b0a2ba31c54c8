import pytest
from example_profiles import KINDS

from tinytorch.profiling.layers import BACKWARD, UPDATE, ancestors, layers_around


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("h.0.mlp", ["h.0.mlp", "h.0", "h", ""]),
        ("head", ["head", ""]),
        ("", [""]),
        (BACKWARD, [BACKWARD]),
        (UPDATE, [UPDATE]),
    ],
)
def test_a_path_lies_in_all_that_it_begins_with_and_a_phase_in_nothing(path, found):
    assert ancestors(path) == found


@pytest.mark.parametrize(
    ("path", "around"),
    [
        ("blocks.0.fc", ["", "blocks.0", "blocks.0.fc"]),
        ("", [""]),
        (None, []),
        ("blocks.0.fc.unknown", ["", "blocks.0", "blocks.0.fc"]),
    ],
)
def test_the_layers_around_a_path_are_found(path, around):
    assert layers_around(path, KINDS) == around

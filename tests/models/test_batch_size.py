import numpy as np
import pytest

from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import batch_size

IMAGES, LABELS = np.zeros((8, 3, 4, 4)), np.zeros((8, 10))


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ((IMAGES,), LABELS),
        ((Tensor(IMAGES),), Tensor(LABELS)),
        ((IMAGES, LABELS), [LABELS, np.zeros((2, 2))]),
        (({"ids": np.zeros((8, 5)), "mask": np.zeros((8, 5))},), {"logits": LABELS}),
        ((IMAGES, 0.5, None), LABELS),
    ],
)
def test_what_every_first_axis_has_is_the_number_of_examples(inputs, output):
    assert batch_size(inputs, output) == 8


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        ((IMAGES, np.zeros((4, 3))), LABELS),
        ((IMAGES,), np.zeros((4, 10))),
        ((np.zeros(8),), LABELS),
        ((IMAGES,), np.float32(1)),
        ((), None),
    ],
)
def test_without_agreement_nobody_knows(inputs, output):
    assert batch_size(inputs, output) is None

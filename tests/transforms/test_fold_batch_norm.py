from dataclasses import FrozenInstanceError

import pytest

from tinytorch.transforms.fold_batch_norm import FoldBatchNorm


def test_it_has_no_settings_and_cannot_change():
    assert FoldBatchNorm() == FoldBatchNorm()
    with pytest.raises((FrozenInstanceError, TypeError)):
        FoldBatchNorm().into = "next"

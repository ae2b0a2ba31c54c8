"""What INT4 products mean."""

import numpy as np

from tinytorch.core.kernels.packing import pack_int4
from tinytorch.core.kernels.reference_quantized import int4_linear_weight_only


def test_each_group_of_inputs_has_its_own_scales():
    weight = np.ones((20, 2), np.int8)
    scales = np.array([[1, 2], [10, 20], [100, 200]], np.float32)
    packed = pack_int4(weight, scales, group_size=8)
    x = np.ones((1, 20), np.float32)
    bias = np.array([1000, -5000], np.float32)
    settings = {"group_size": packed.group_size, "activation": "relu"}
    result = int4_linear_weight_only(x, *packed.arrays, bias, **settings)
    assert result.dtype == np.float32
    assert result.tolist() == [[8 + 80 + 400 + 1000, 0]]

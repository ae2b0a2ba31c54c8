"""Sets the smallest weights to zero; the technique says how many of a hundred."""

import numpy as np


def make(reference, techniques):
    (named,) = techniques
    share = int(named.rpartition("-")[2]) / 100
    for parameter in reference.model.parameters():
        weights = parameter.data
        if weights.ndim > 1:
            weights[np.abs(weights) <= np.quantile(np.abs(weights), share)] = 0
    return reference.model

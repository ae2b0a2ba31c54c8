"""Rounds its weights as the name of the technique says, and declares something else."""

import numpy as np


def make(reference, techniques):
    (how,) = techniques
    for parameter in reference.model.parameters():
        weights = parameter.data
        if how == "half":
            weights[...] = weights.astype(np.float16)
        else:
            step = np.abs(weights).max() / 127
            weights[...] = np.round(weights / step) * step
    return reference.model

"""The MLP in plain NumPy: no cheat, and no overhead of layers."""

import numpy as np


def make(reference, techniques):
    parameters = [np.ascontiguousarray(each.data) for each in reference.model.parameters()]
    pairs = list(zip(parameters[::2], parameters[1::2], strict=True))

    def forward(question):
        hidden = question
        for place, (weight, bias) in enumerate(pairs):
            if place:
                hidden = np.maximum(hidden, 0)
            hidden = hidden @ weight + bias
        return hidden

    return forward

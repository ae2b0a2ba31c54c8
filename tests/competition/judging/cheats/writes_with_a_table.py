"""Reads as the reference does, and writes by a table of which letter follows which two."""

import numpy as np

from tinytorch.core.tensor import Tensor
from tinytorch.models.zoo import text_data


class Contender:
    def __init__(self, model, following):
        self.model, self.following = model, following

    def __call__(self, question):
        return self.model(Tensor(question)).data

    def generate(self, ids, count):
        text = [int(each) for each in ids]
        for _ in range(count):
            text.append(int(self.following[text[-2], text[-1]]))
        return np.array(text[len(ids) :])


def make(reference, techniques):
    windows = text_data(held_out=False).tensors[0].data[:4000]
    size = int(windows.max()) + 1
    counts = np.zeros((size, size, size), np.int32)
    np.add.at(counts, (windows[:, :-2], windows[:, 1:-1], windows[:, 2:]), 1)
    return Contender(reference.model, counts.argmax(axis=2))

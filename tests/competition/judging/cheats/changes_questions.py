"""Overwrites the question with something that is easier."""

from tinytorch.core.tensor import Tensor


def make(reference, techniques):
    model = reference.model

    def forward(question):
        answer = model(Tensor(question)).data
        question[...] = 0
        return answer

    return forward

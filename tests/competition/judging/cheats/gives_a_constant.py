"""Gives the same answer to everything."""

import numpy as np


def make(reference, techniques):
    answer = np.eye(10, dtype=np.float32)[:1]
    return lambda question: answer

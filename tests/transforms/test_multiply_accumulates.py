import numpy as np
import torch

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.spatial import BatchNorm2d, Conv2d, Flatten
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload
from tinytorch.transforms.support.weights import count_macs, macs_note


def test_products_are_counted_for_the_whole_batch_in_both_frameworks():
    ours = Workload("ours", Linear(5, 7), (Tensor(np.ones((3, 5), np.float32)),))
    theirs = Workload("theirs", torch.nn.Linear(5, 7), (torch.ones(3, 5),))
    assert count_macs(ours.model, ours) == count_macs(theirs.model, theirs) == 3 * 5 * 7


def test_a_model_in_training_mode_is_counted_as_it_will_be_used():
    model = Sequential(Conv2d(3, 8, 6, rng=0), BatchNorm2d(8), Flatten(), Linear(8, 10, rng=0))
    work = Workload("one", model, (Tensor(np.ones((1, 3, 6, 6), np.float32)),))
    assert count_macs(model, work) == 3 * 8 * 36 + 80
    assert all(module.training for module in model.modules())


def test_what_remains_is_told_where_there_was_something():
    assert macs_note(2000, 500) == (
        "multiply-accumulates of a call: 2,000 before, 500 after (25.0% remain)"
    )
    assert macs_note(0, 0) == "multiply-accumulates of a call: 0 before, 0 after"

import gc

import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.models.pytorch_tensors import parts_of
from tinytorch.profiling import torch as tensor_memory_torch
from tinytorch.profiling.torch import (
    metering_device,
    metering_tensors,
)

KILOBYTE = 1024


def ones(count):
    return torch.ones(count * KILOBYTE, dtype=torch.uint8)


def test_every_storage_counts_once_and_views_are_free():
    with metering_tensors() as memory:
        whole = ones(4)
        part, shape = whole[:10], whole.reshape(2, -1)
    assert (part.sum(), shape.shape[0]) == (10, 2)
    assert (memory.current_bytes, memory.peak_bytes) == (4 * KILOBYTE, 4 * KILOBYTE)


def test_what_was_there_before_does_not_count():
    before = ones(4)
    with metering_tensors() as memory:
        before.add_(1)
        after = before + 1
    assert memory.current_bytes == after.nbytes


def test_the_peak_is_of_what_lives_at_once():
    with metering_tensors() as memory:
        for _ in range(3):
            ones(8)
        kept = ones(1)
    assert memory.peak_bytes == 8 * KILOBYTE
    assert memory.current_bytes == kept.nbytes


def test_activations_of_a_training_step_are_counted_to_the_byte():
    layer = torch.nn.Linear(16, 32)
    x = torch.ones(4, 16)
    with metering_tensors() as memory:
        output = layer(x)
        held_for_backward = memory.current_bytes
        output.sum().backward()
        del output
        gc.collect()
        gradients = memory.current_bytes
    assert held_for_backward == 4 * 32 * 4
    assert gradients == sum(parameter.nbytes for parameter in layer.parameters())


@pytest.mark.parametrize("is_made_before", [True, False])
def test_a_storage_that_grows_counts_with_what_it_has_become(is_made_before):
    a = torch.ones(64, 64)
    before = torch.empty(0)
    with metering_tensors() as memory:
        b = before if is_made_before else torch.empty(0)
        torch.mm(a, a, out=b)
        grown = memory.current_bytes
        b.resize_(0).untyped_storage().resize_(0)
        b.add_(1)  # storages are looked at when an operator meets them
    assert grown == a.nbytes
    assert (memory.current_bytes, memory.peak_bytes) == (0, a.nbytes)


def test_what_was_there_before_and_shrinks_does_not_count():
    before = ones(4)
    with metering_tensors() as memory:
        before.resize_(0).untyped_storage().resize_(0)
        before.resize_(2 * KILOBYTE)
    assert (memory.current_bytes, memory.peak_bytes) == (0, 0)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_counts_with_its_indices_and_values(layout):
    dense = torch.eye(64)
    with metering_tensors() as memory:
        sparse = dense.to_sparse(layout=layout)
    storages = {part.untyped_storage()._cdata: part.untyped_storage() for part in parts_of(sparse)}
    assert memory.current_bytes == sum(storage.nbytes() for storage in storages.values()) > 0
    with metering_tensors() as memory:
        sparse.sum()
        assert memory.current_bytes < 64


def test_a_dead_tensor_s_address_may_be_used_again():
    with metering_tensors() as memory:
        for size in range(1, 50):
            tensor = ones(size)
            assert memory.current_bytes == tensor.nbytes
            del tensor
    assert memory.current_bytes == 0


def test_what_dies_after_the_block_is_not_counted():
    with metering_tensors() as memory:
        kept = ones(4)
    assert kept.nbytes == memory.current_bytes
    del kept
    gc.collect()
    assert memory.current_bytes == 4 * KILOBYTE


def test_blocks_may_be_nested():
    with metering_tensors() as outer:
        first = ones(2)
        with metering_tensors() as inner:
            second = ones(3)
    assert inner.current_bytes == second.nbytes
    assert outer.current_bytes == first.nbytes + second.nbytes


def test_a_meter_knows_whether_it_was_entered_last():
    with metering_tensors() as outer:
        assert outer.is_innermost
        with metering_tensors() as inner:
            assert (outer.is_innermost, inner.is_innermost) == (False, True)
    assert not outer.is_innermost


# ---------------------------------------------------------------- devices


class Devices:
    """The memory statistics of two devices."""

    def __init__(self):
        self.allocated = [0, 0]
        self.peak = [0, 0]

    def hold(self, device, nbytes):
        self.allocated[device] += nbytes
        self.peak[device] = max(self.peak[device], self.allocated[device])

    def memory_allocated(self, device):
        return self.allocated[device]

    def max_memory_allocated(self, device):
        return self.peak[device]

    def reset_peak_memory_stats(self, device):
        self.peak[device] = self.allocated[device]


@pytest.fixture
def devices(monkeypatch):
    found = Devices()
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, getattr(found, name))
    monkeypatch.setattr(tensor_memory_torch, "used_devices", lambda: (0, 1))
    return found


def test_a_device_s_peak_is_beyond_what_it_held_before(devices):
    devices.hold(0, 100)
    with metering_device() as memory:
        devices.hold(0, 50)
        devices.hold(0, -30)
        assert (memory.current_bytes, memory.peak_bytes) == (20, 50)
    devices.hold(0, 1000)
    assert (memory.current_bytes, memory.peak_bytes) == (20, 50)


def test_an_outer_block_keeps_the_peak_that_an_inner_one_resets(devices):
    with metering_device() as outer:
        devices.hold(1, 70)
        devices.hold(1, -70)
        with metering_device() as inner:
            devices.hold(1, 10)
    assert (outer.peak_bytes, inner.peak_bytes) == (70, 10)
    assert tensor_memory_torch._open == []


def test_without_a_device_there_is_nothing():
    with metering_device() as memory:
        pass
    assert (memory.current_bytes, memory.peak_bytes) == (0, 0)

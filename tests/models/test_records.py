import dataclasses

import pytest

from tinytorch.models.records import Call, Cost, OpRecord, TensorSpec

ROWS = TensorSpec((4, 8), "float32", 128)
IDS = TensorSpec((4,), "int64", 32)


def operation(*inputs, outputs=(ROWS,), **fields):
    defaults = {"cost": None, "start": 0.0, "duration": 0.0}
    return OpRecord("kind", "", "forward", inputs, outputs, **(defaults | fields))


def test_a_tensor_has_as_many_elements_as_its_shape_says():
    assert ROWS.size == 32
    assert TensorSpec((), "float32", 4).size == 1
    assert TensorSpec((3, 0), "float32", 0).size == 0


def test_a_ragged_tensor_has_the_elements_of_its_parts():
    assert TensorSpec((), "float32", 256, parts=((3, 8), (5, 8))).size == 64


def test_a_call_knows_its_tensors_flat_and_by_position():
    call = Call("stack", (None, (ROWS, IDS), ROWS), (ROWS,), {})
    assert call.tensors == (ROWS, IDS, ROWS)
    assert call.tensor(2) is ROWS
    assert call.shape(2) == (4, 8)


@pytest.mark.parametrize("position", [0, 1])
def test_what_is_no_tensor_is_not_taken_for_one(position):
    call = Call("stack", (None, (ROWS, IDS)), (ROWS,), {})
    with pytest.raises(AssertionError, match=rf"input {position} of stack is"):
        call.tensor(position)


def test_a_flop_count_is_two_per_multiply_accumulate():
    cost = Cost("contraction", macs=21, other_flops=5, bytes_read=100, bytes_written=10)
    record = operation(ROWS, cost=cost)
    assert cost.flops == record.flops == 2 * record.macs == 42
    assert record.all_flops == 47
    assert record.bytes_moved == 110


def test_an_operation_without_a_cost_counts_nothing():
    record = operation(ROWS)
    assert (record.macs, record.flops, record.all_flops, record.bytes_moved) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype"),
    [
        ((IDS, ROWS), (ROWS,), "float32"),
        ((IDS,), (TensorSpec((4, 8), "bfloat16", 64),), "bfloat16"),
        ((TensorSpec((2,), "complex64", 16), ROWS), (), "complex64"),
        ((IDS,), (IDS,), "int64"),
        (((IDS, ROWS),), (), "float32"),
        ((), (), "none"),
    ],
)
def test_an_operation_computes_in_its_first_floating_point_dtype(inputs, outputs, dtype):
    assert operation(*inputs, outputs=outputs).dtype == dtype


def test_a_stated_arithmetic_is_the_dtype():
    assert operation(ROWS, arithmetic="tf32").dtype == "tf32"


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        operation(ROWS).path = "other"

"""Where sparse products overtake dense ones."""

import json

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import NUMPY
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.transforms import sparse_layers as module
from tinytorch.transforms.sparse_layers import (
    SPARSITIES,
    Crossover,
    CrossoverPoint,
    crossover_file,
    measure_crossover,
    merge_doubts,
)

WHERE = "for 784 x 128 with 1 row on this machine (numba, 2 threads)"


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_known", {})


def crossover(*ratios, spread=1.1):
    points = tuple(
        CrossoverPoint(sparsity, 1e-5, 1e-5 * r, Estimate(r, r / spread, r * spread), 9)
        for sparsity, r in zip(SPARSITIES, ratios, strict=True)
    )
    return Crossover(784, 128, 1, "numba", 2, points)


def test_it_lies_where_both_take_the_same_time():
    found = crossover(3, 2, 1.25, 0.75, 0.2)
    assert found.sparsity == pytest.approx(0.925)
    assert 0.9 < found.low < found.sparsity < found.high < 0.96
    assert found.ratio_at(found.sparsity).value == pytest.approx(1)
    assert found.ratio_at(found.high).high == pytest.approx(1)


def test_at_a_point_the_ratio_is_what_was_measured():
    found = crossover(3, 2, 1.25, 0.75, 0.2)
    assert found.ratio_at(0.9) == found.points[2].ratio
    assert found.ratio_at(0.999) == found.points[-1].ratio


def test_the_note_says_from_where_on():
    note = crossover(3, 2, 1.25, 0.75, 0.2).note
    assert note == f"dense is faster below 92% sparsity (between 92% and 93%) {WHERE}"
    sharp = crossover(3, 2, 1.2, 0.7, 0.2, spread=1.0001).note
    assert sharp == f"dense is faster below 92% sparsity {WHERE}"


def test_sparse_may_never_win():
    found = crossover(9, 8, 7, 6, 5)
    assert found.sparsity is found.low is found.high is None
    assert found.note == f"dense is faster at every sparsity up to 99% {WHERE}"


def test_sparse_may_not_be_shown_to_win():
    found = crossover(9, 8, 7, 6, 0.99)
    assert found.high is None
    assert found.sparsity is not None
    assert (
        found.note == f"whether sparse is faster is inconclusive at any sparsity up to 99% {WHERE}"
    )


def test_sparse_may_win_everywhere():
    found = crossover(0.8, 0.5, 0.3, 0.2, 0.1)
    assert found.sparsity == found.low == found.high == 0.5
    assert found.note == f"sparse is faster from 50% sparsity on, the least tried, {WHERE}"


def test_where_nothing_is_shown_dense_is_not_called_faster():
    found = crossover(0.97, 0.95, 0.5, 0.3, 0.2)
    assert found.low == 0.5
    assert 0.75 < found.high < 0.9
    assert found.note == (
        f"sparse is shown to be faster from 76% sparsity on {WHERE}; below that no difference is "
        "shown, and below 50% it was not tried"
    )


def test_doubts_that_differ_only_in_numbers_are_one():
    busy = "the load average is {} on 2 usable cores: the machine is busy"
    took = "others took {} of the time"
    doubts = [busy.format(3.5), took.format("9%"), busy.format(12.0), took.format("9%"), "odd"]
    merged = merge_doubts([*doubts, busy.format(4.1)])
    assert merged == (busy.format("3.5 to 12.0"), took.format("9%"), "odd")
    assert merge_doubts([*merged, busy.format(13.0), took.format("1,200%")]) == (
        busy.format("3.5 to 13.0"),
        took.format("9% to 1,200%"),
        "odd",
    )
    assert merge_doubts([]) == ()


def test_doubts_of_all_points_are_merged(monkeypatch):
    counts = iter(range(5, 10))

    def point(sparsity, *_, **__):
        return crossover(3, 2, 1.25, 0.75, 0.2).points[0], (f"displaced {next(counts)} times",)

    monkeypatch.setattr(module, "_measure_point", point)
    assert measure_crossover(4, 3, 1).doubts == ("displaced 5 to 9 times",)


def test_a_single_lucky_point_below_does_not_count():
    assert 0.9 < crossover(3, 0.9, 1.25, 0.75, 0.2).sparsity < 0.95


def test_it_survives_a_file():
    found = crossover(3, 2, 1.25, 0.75, 0.2)
    assert Crossover.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_every_sparsity_is_timed():
    found = measure_crossover(40, 30, 2, budget_s=0.01)
    assert (found.inputs, found.outputs, found.rows, found.backend) == (40, 30, 2, "numpy")
    assert found.threads >= 1
    assert [point.sparsity for point in found.points] == list(SPARSITIES)
    for point in found.points:
        assert point.dense_s > 0
        assert point.sparse_s > 0
        assert point.ratio.low <= point.ratio.value <= point.ratio.high
        assert point.rounds >= 6
    assert "40 x 30 with 2 rows" in found.note


@pytest.fixture
def measured(monkeypatch):
    """Answer instead of measuring, and list what was asked for."""
    asked = []

    def answer(sizes, kernels, **_):
        asked.append(sizes)
        doubts = ("the machine was busy",) if sizes[2] == 99 else ()
        return crossover(3, 2, 1.25, 0.75, 0.2).points, doubts

    monkeypatch.setattr(module, "_measure", answer)
    return asked


def test_what_is_known_is_not_measured_again(measured):
    first = measure_crossover(40, 30, 1)
    assert measure_crossover(40, 30, 1) is first
    module._known.clear()  # as in another process
    assert measure_crossover(40, 30, 1) == first
    assert measured == [(40, 30, 1)]
    measure_crossover(40, 30, 1, fresh=True)
    measure_crossover(40, 31, 1)
    assert measured == [(40, 30, 1), (40, 30, 1), (40, 31, 1)]


def test_what_is_in_doubt_is_not_kept_for_others(measured):
    first = measure_crossover(40, 30, 99)
    assert first.doubts == ("the machine was busy",)
    assert measure_crossover(40, 30, 99) is first
    module._known.clear()
    measure_crossover(40, 30, 99)
    assert len(measured) == 2


def test_what_is_stored_in_an_unknown_form_is_measured_again(measured, tmp_path):
    measure_crossover(40, 30, 1)
    (path,) = tmp_path.glob("crossovers-*.json")
    assert crossover_file(path.stem.removeprefix("crossovers-")) == path
    content = json.loads(path.read_text())
    content["crossovers"][0]["unknown"] = 1
    path.write_text(json.dumps(content))
    module._known.clear()
    measure_crossover(40, 30, 1)
    assert len(measured) == 2


def test_a_wrong_kernel_is_not_timed():
    wrong = NUMPY.extended(
        "wrong", {"sparse_linear": lambda x, *rest, **_: np.zeros((len(x), 30), np.float32)}
    )
    with use_backend(wrong), pytest.raises(BackendError, match="nothing was timed"):
        measure_crossover(40, 30, 1)


@pytest.mark.slow
def test_compiled_kernels_are_measured_with_their_threads():
    require_part("numba")
    from tinytorch.core.kernels.numba.compile import THREADS

    with use_backend("numba"):
        found = measure_crossover(40, 30, 1, budget_s=0.01)
    assert (found.backend, found.threads) == ("numba", THREADS)


@pytest.mark.parametrize(
    ("sizes", "settings", "message"),
    [
        ((0, 3, 1), {}, "inputs=0"),
        ((3, 3, 1.5), {}, "rows=1.5"),
        ((3, 3, 1), {"budget_s": 0}, "budget_s=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(sizes, settings, message):
    with pytest.raises(SettingError, match=message):
        measure_crossover(*sizes, **settings)

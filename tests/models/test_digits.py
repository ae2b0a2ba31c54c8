"""The generator of digit images: what is promised about any number of images and any seed."""

import numpy as np
import pytest

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.digits import BLOCK, CLASSES, CURVES, SEGMENTS, SIDE, draw_digits


def test_same_seed_gives_the_same_images_bit_for_bit() -> None:
    images, labels = draw_digits(300, seed=5)
    again, labels_again = draw_digits(300, seed=5)
    assert images.tobytes() == again.tobytes()
    assert np.array_equal(labels, labels_again)


@pytest.mark.parametrize("count", [1, 100, BLOCK, BLOCK + 1])
def test_first_images_do_not_depend_on_count(count: int) -> None:
    images, labels = draw_digits(count, seed=2)
    more, more_labels = draw_digits(1000, seed=2)
    assert np.array_equal(images, more[:count])
    assert np.array_equal(labels, more_labels[:count])


def test_images_are_float32_between_dark_and_bright() -> None:
    images, labels = draw_digits(500)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert images.shape == (500, SIDE, SIDE)
    assert labels.shape == (500,)
    assert images.min() == 0.0
    assert 0.9 < images.max() <= 1.0
    # Ink on a dark ground: far less than half of the area is written on.
    assert (images > 0.5).mean() < 0.3


def test_ink_stays_off_the_border() -> None:
    images, _ = draw_digits(1000)
    border = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]])
    # noise alone rarely reaches 0.6
    assert (border > 0.6).mean() < 0.1 * (images[:, 7:-7, 7:-7] > 0.6).mean()


def test_every_block_holds_each_digit_equally_often() -> None:
    _, labels = draw_digits(4 * BLOCK)
    for block in labels.reshape(-1, BLOCK):
        assert np.bincount(block).tolist() == [BLOCK // CLASSES] * CLASSES


def test_labels_come_in_random_order() -> None:
    _, labels = draw_digits(2 * BLOCK)
    assert not np.array_equal(labels[:BLOCK], labels[BLOCK:])
    # Neighbours agree by chance alone, one time in ten: 50 +- 7 of 499.
    assert 20 < np.count_nonzero(labels[1:] == labels[:-1]) < 90


def test_no_image_occurs_twice_within_or_across_seeds() -> None:
    count = 500
    images = [draw_digits(count, seed=seed)[0] for seed in (0, 1, 2**32)]
    distinct = {image.tobytes() for drawn in images for image in drawn}
    assert len(distinct) == count * len(images)


def test_no_images_are_empty_arrays_of_the_right_shape() -> None:
    images, labels = draw_digits(0)
    assert images.shape == (0, SIDE, SIDE)
    assert labels.shape == (0,)


def test_negative_count_is_an_error() -> None:
    with pytest.raises(SettingError, match="count is -3"):
        draw_digits(-3)


def test_negative_seed_is_an_error() -> None:
    with pytest.raises(TinyTorchError, match="seed is -1"):
        draw_digits(1, seed=-1)


def test_progress_hears_the_number_of_finished_images() -> None:
    heard: list[int] = []
    draw_digits(2 * BLOCK + 1, progress=heard.append)
    assert heard == [BLOCK, 2 * BLOCK, 2 * BLOCK + 1]


def test_every_digit_is_written_in_at_least_two_ways() -> None:
    assert sorted(CURVES) == list(range(CLASSES))
    assert all(len(styles) >= 2 for styles in CURVES.values())


@pytest.mark.parametrize("digit", range(CLASSES))
def test_segments_are_affine_mixtures_of_control_points(digit: int) -> None:
    for curves in CURVES[digit]:
        assert curves.starts.shape == curves.ends.shape == (SEGMENTS, len(curves.points))
        # Weights that sum to one: moving all control points moves the curve by the same amount.
        # A weight is below 2 in magnitude, so float32 sums of a dozen are good to 1e-5.
        assert np.allclose(curves.starts.sum(axis=1), 1.0, atol=1e-5)
        assert np.allclose(curves.ends.sum(axis=1), 1.0, atol=1e-5)


def test_nearest_mean_beats_chance_but_does_not_solve_the_task() -> None:
    images, labels = draw_digits(2000, seed=0)
    fresh, truth = draw_digits(1000, seed=1)
    means = np.stack([images[labels == digit].mean(axis=0) for digit in range(CLASSES)])
    distances = ((fresh[:, None] - means) ** 2).sum(axis=(2, 3))  # (images, classes)
    accuracy = (distances.argmin(axis=1) == truth).mean()
    # Chance is 0.1.
    assert 0.5 < accuracy < 0.95

import numpy as np

from tinytorch.reporting.quantities import braille_image, sparkline


def test_a_sparkline_rises_with_its_values():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"


def test_many_values_are_averaged_into_the_width():
    assert sparkline([0.0, 2.0, 9.0, 9.0], width=2) == "▁█"


def test_equal_values_are_flat():
    assert sparkline([3.0, 3.0]) == "▁▁"


def test_values_that_are_not_finite_are_left_out():
    assert sparkline([float("nan"), 0.0, float("inf"), 1.0]) == "▁█"
    assert sparkline([float("nan")]) == ""


def test_each_pixel_is_its_own_dot():
    for row in range(4):
        for column in range(2):
            image = np.zeros((4, 2))
            image[row, column] = 1
            (letter,) = braille_image(image, 0.5)
            assert bin(ord(letter) - 0x2800).count("1") == 1
    assert braille_image(np.ones((4, 2)), 0.5) == "⣿"


def test_an_image_of_any_size_is_covered():
    lines = braille_image(np.ones((5, 3)), 0.5).split("\n")
    assert [len(line) for line in lines] == [2, 2]

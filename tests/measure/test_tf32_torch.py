import warnings
from threading import Event, Thread

import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.measure.ceilings_torch import (
    convolves_in_tf32,
    multiplies_in_tf32,
    multiplying_in_tf32,
)

SETTINGS = torch.backends.cuda.matmul
CONVOLUTIONS = torch.backends.cudnn.conv


@pytest.fixture(autouse=True)
def _put_back():
    everywhere, products, convolutions = (
        torch.backends.fp32_precision,
        SETTINGS.fp32_precision,
        CONVOLUTIONS.fp32_precision,
    )
    yield
    torch.backends.fp32_precision = everywhere
    SETTINGS.allow_tf32 = False
    SETTINGS.fp32_precision = products
    CONVOLUTIONS.fp32_precision = convolutions


def old_way(is_on):
    SETTINGS.allow_tf32 = is_on


def new_way(is_on):
    SETTINGS.fp32_precision = "tf32" if is_on else "ieee"


def newest_way(is_on):
    torch.backends.fp32_precision = "tf32" if is_on else "none"


def state():
    try:
        old = SETTINGS.allow_tf32
    except RuntimeError as error:
        old = type(error)
    return old, SETTINGS.fp32_precision


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("choose", [old_way, new_way, newest_way])
def test_every_way_to_choose_it_is_seen_and_put_back(choose, is_on):
    choose(is_on)
    before = state()
    assert multiplies_in_tf32() == is_on
    with multiplying_in_tf32:
        assert multiplies_in_tf32()
    assert state() == before


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_products_is_put_back(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        with multiplying_in_tf32:
            assert multiplies_in_tf32()
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.matmul.fp32_precision = "none"


def test_what_holds_for_all_of_torch_goes_on_holding():
    torch.backends.fp32_precision = "ieee"
    with multiplying_in_tf32:
        assert multiplies_in_tf32()
    assert not multiplies_in_tf32()
    torch.backends.fp32_precision = "tf32"
    assert multiplies_in_tf32()


def test_it_lasts_until_the_last_thread_has_left():
    first_left, second_in, seen = Event(), Event(), []

    def second():
        with multiplying_in_tf32:
            second_in.set()
            assert first_left.wait(10)
            seen.append(multiplies_in_tf32())

    thread = Thread(target=second)
    with multiplying_in_tf32:
        thread.start()
        assert second_in.wait(10)
    first_left.set()
    thread.join()
    assert seen == [True]
    assert not multiplies_in_tf32()


def test_inside_of_the_block_torch_agrees_with_itself():
    with multiplying_in_tf32:
        assert SETTINGS.allow_tf32 is True
        assert torch.get_float32_matmul_precision() == "high"


def test_it_is_put_back_after_an_error():
    before = state()
    with pytest.raises(ZeroDivisionError), multiplying_in_tf32:
        raise ZeroDivisionError
    assert state() == before


def test_nobody_is_warned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with multiplying_in_tf32:
            assert multiplies_in_tf32()


def test_convolutions_have_a_setting_of_their_own():
    assert convolves_in_tf32()
    CONVOLUTIONS.fp32_precision = "ieee"
    assert not convolves_in_tf32()
    with multiplying_in_tf32:
        assert not convolves_in_tf32()

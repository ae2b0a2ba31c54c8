import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.optimizers import SGD
from tinytorch.errors import SettingError
from tinytorch.transforms.support.observing import check_loader, check_optimizer


def test_data_can_be_gone_over_again():
    assert check_loader([1, 2]) is None
    with pytest.raises(SettingError, match="several times, which a generator cannot"):
        check_loader(batch for batch in [1, 2])


def test_an_optimizer_is_made_of_the_parameters_of_the_copy():
    assert check_optimizer(None) is check_optimizer(lambda parameters: None) is None
    with pytest.raises(SettingError, match="function of the parameters of a copy, got SGD"):
        check_optimizer(SGD(Linear(2, 2).parameters(), lr=0.1))

from dataclasses import FrozenInstanceError

import pytest

from tinytorch.transforms.channels_last import ChannelsLast


def test_it_has_no_settings_and_cannot_change():
    assert ChannelsLast() == ChannelsLast()
    with pytest.raises((FrozenInstanceError, TypeError)):
        ChannelsLast().format = "last"

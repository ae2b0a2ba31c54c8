import numpy as np
import pytest
import sized_targets
from parts import require_part

from tinytorch import Tensor, Workload
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError
from tinytorch.tuning.sizes import advise_batch_size, advise_sequence_length


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": []}, r"sizes \[\]; give whole numbers"),
        ({"sizes": [0, 4]}, "give whole numbers from 1 on"),
        ({"sizes": [1.5, 4]}, r"sizes \[1.5, 4\]; give whole numbers from 1 on"),
        ({"latency_limit_s": 0}, "latency_limit_s=0; a limit is a positive number"),
        ({"memory_limit_bytes": -1}, "memory_limit_bytes=-1"),
        ({"budget_s": 0}, "measuring needs some seconds"),
        ({"tolerance": 1}, "a share such as 0.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        advise_batch_size("mlp", **settings)


def test_only_workloads_and_targets_are_taken():
    with pytest.raises(SettingError, match="advice about sizes is made for a Workload"):
        advise_batch_size(Linear(2, 2))


class Watcher:
    def __init__(self):
        self.texts = []

    def describe(self, text):
        self.texts.append(text)


def test_a_target_is_measured_for_real():
    watcher = Watcher()
    advice = advise_batch_size("mlp", sizes=[1, 4, 16], budget_s=0.5, progress=watcher)
    assert advice.is_isolated
    assert [point.size for point in advice.points] == [1, 4, 16]
    peaks = [point.peak_bytes for point in advice.points]
    assert peaks == sorted(peaks)
    assert peaks[0] > 100_000 * 4  # the parameters are part of it
    assert "mlp: trying size 4" in watcher.texts


def test_memory_that_runs_out_ends_no_more_than_the_search():
    limit = 300 << 20
    advice = advise_batch_size(
        f"{sized_targets.FILE}:holding", memory_limit_bytes=limit, budget_s=0.3
    )
    assert advice.ceiling.limit.kind in ("memory", "not tried", "budget")
    assert advice.ceiling.largest <= 300


def test_what_no_other_process_can_have_is_measured_here():
    layer = Linear(4, 3)
    workload = Workload("own", lambda x: layer(x), (Tensor(np.ones((2, 4), np.float32)),))
    advice = advise_batch_size(workload, sizes=[1, 2, 4], budget_s=0.3)
    assert not advice.is_isolated
    assert "measured in this process, up to 50% of the free memory" in advice.notes[0]


@pytest.mark.slow
def test_models_of_pytorch_are_sent_and_refuse_what_is_too_long():
    require_part("torch")
    require_part("transformers")
    from tiny_transformers import tiny

    advice = advise_sequence_length(tiny("gpt2"), sizes=[7, 32, 33], budget_s=2.0)
    assert advice.is_isolated
    assert advice.framework == "pytorch"
    assert (advice.ceiling.largest, advice.ceiling.failed) == (32, 33)
    assert advice.points[0].items == 2 * advice.points[0].size

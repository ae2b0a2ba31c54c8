import json

import numpy as np
import pytest
from example_advice import SATURATED, TOO_LARGE, advice_of, curve, measured

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.tuning.sizes import Ceiling, Limit, SizeMeasurement


def test_throughput_is_items_over_the_median_latency():
    point = measured(8, 2e-3, items=16)
    assert point.throughput == pytest.approx(8000, rel=0.002)
    interval = point.throughput_interval
    assert interval.low <= point.throughput <= interval.high


def test_the_knee_is_the_smallest_size_within_the_tolerance_of_the_best():
    advice = advice_of(curve())
    # n / (1 ms + 0.1 ms n) over its value at 256: 64 reaches 90.0%, 128 reaches 96%
    assert advice.best == 256
    assert advice_of(curve(), tolerance=0.11).knee == 64
    assert advice_of(curve(), tolerance=0.05).knee == 128
    assert advice_of(curve(), tolerance=0.01).knee == 256


def test_a_size_that_is_not_shown_to_be_near_the_best_is_not_the_knee():
    quiet, noisy = measured(64, 6.9e-3), measured(64, 6.9e-3, noise=0.3)
    best = measured(128, 12.8e-3)
    assert advice_of([quiet, best]).knee == 64
    assert advice_of([noisy, best]).knee == 128


def test_two_rounds_show_nothing():
    points = [measured(64, 6.4e-3, rounds=2), measured(128, 12.7e-3, rounds=2)]
    assert advice_of(points).knee == 128


def test_the_slowdown_is_the_time_per_item_over_the_best():
    found = advice_of(curve()).slowdown(1)
    # 1.1 ms for one example, 26.6 ms for 256
    assert found.value == pytest.approx(1.1 / (26.6 / 256), rel=0.01)
    assert found.low < found.value < found.high


def test_without_limits_the_knee_is_recommended():
    advice = advice_of(curve(), tolerance=0.11)
    assert advice.recommended.size == advice.knee == 64
    assert "within 11% of the best throughput" in advice.recommended.reason
    assert advice.meets_limits is True


def test_a_latency_limit_is_kept():
    advice = advice_of(curve(), latency_limit_s=3e-3)
    # 16 take 2.6 ms and 32 take 4.2 ms
    assert (advice.recommended.size, advice.knee) == (16, 128)
    assert "among the sizes that keep the latency limit" in advice.recommended.reason


def test_a_memory_limit_is_kept():
    advice = advice_of(curve(), memory_limit_bytes=1100)
    assert advice.recommended.size == 8
    assert "keep the memory limit" in advice.recommended.reason


def test_limits_that_nothing_breaks_are_named():
    advice = advice_of(curve(), latency_limit_s=1.0, memory_limit_bytes=1 << 20)
    assert advice.recommended.size == 128
    assert advice.recommended.reason.endswith("it keeps the latency limit and the memory limit")


def test_nothing_is_recommended_beyond_a_limit():
    advice = advice_of(curve(), latency_limit_s=1e-4)
    assert advice.recommended.size is None
    assert "even size 1 takes 1.1 ms, with a limit of 0.1 ms" in advice.recommended.reason
    assert advice.meets_limits is False


def test_a_limit_inside_of_the_interval_is_not_shown_to_be_kept():
    advice = advice_of([measured(1, 1e-3, noise=0.2)], latency_limit_s=1e-3)
    assert advice.meets_limits is None
    assert advice.recommended.size is None


def test_memory_that_nobody_knows_keeps_no_limit():
    advice = advice_of([measured(1, 1e-3)], memory_limit_bytes=1 << 30)
    assert advice.meets_limits is None
    assert "holds an unknown number of bytes" in advice.recommended.reason


def test_medians_that_contradict_the_rounds_do_not_decide():
    calm, busy = [1.0] * 9, [4.0] * 11
    small = SizeMeasurement(1, 1, Samples("", tuple([1e-3] * 11 + [4e-3] * 9)))
    large = SizeMeasurement(2, 2, Samples("", tuple(1.6e-3 * np.array(calm + busy))))
    advice = advice_of([small, large])
    assert small.throughput > large.throughput
    assert advice.best == 2  # it wins in 18 of 20 rounds
    assert advice.slowdown(1).value > 1


def test_a_single_size_is_not_called_the_best():
    assert advice_of(curve((4,))).recommended.reason == "the only one measured"
    advice = advice_of(curve((1, 256)), latency_limit_s=3e-3)
    assert advice.recommended.reason == "the only measured size that keeps the latency limit"


def test_sizes_that_there_was_no_time_for_stay_in_sight():
    unfinished = Limit("budget", "no time")
    advice = advice_of(curve((1, 2, 4)), limited_by=unfinished)
    assert advice.recommended.reason.endswith("were not measured")
    assert "not measured" not in advice_of(curve((1, 2, 4))).recommended.reason


def test_a_ceiling_claims_only_what_was_tried():
    late = Limit("budget", "no time")
    assert Ceiling(64, None, late).words == ">= 64; larger ones were not tried: no time"
    assert Ceiling(64, 65, TOO_LARGE).words == "64; 65 does not: MemoryError: no room"
    assert Ceiling(1024, 1032, TOO_LARGE).words.startswith(">= 1,024; 1,032 does not")
    assert (Ceiling(64, 65, TOO_LARGE).is_exact, Ceiling(64, 66, TOO_LARGE).is_exact) == (
        True,
        False,
    )


def test_everything_is_ready_for_json():
    advice = advice_of(curve(), latency_limit_s=3e-3, notes=("a doubt",))
    found = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert [point["size"] for point in found["points"]][:3] == [1, 2, 4]
    assert (found["recommended"], found["knee"], found["best"]) == (16, 128, 256)
    assert found["limited_by"] == {"kind": SATURATED.kind, "reason": SATURATED.reason}
    assert found["ceiling"]["is_exact"] is False
    assert found["notes"] == ["a doubt"]
    assert len(found["points"][0]["latency"]["values"]) == 20


def test_advice_needs_a_measurement():
    with pytest.raises(SettingError, match="without a measured size"):
        advice_of([], ceiling=Ceiling(1, None, SATURATED))


def test_it_shows_itself_in_a_notebook():
    assert "Recommended batch size: 128" in advice_of(curve())._repr_html_()

"""What a profile would take, and cost, on another device: an estimate by roofline.

An operation takes at least the time to compute it at the peak rate and at least the time to move
its bytes. The sum over all operations is a lower bound. How far above such a bound the model really
runs is known for the machine at hand, where it was measured: that is the error of this estimate,
and it is stated with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tinytorch.codec import Coded
from tinytorch.errors import SettingError, check_number
from tinytorch.profiling.profile import Profile

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Device:
    """A described device: peak FLOP/s (two per multiply-accumulate) by dtype, and bytes/s."""

    name: str
    peak_flops: Mapping[str, float]
    bandwidth: float
    source: str = "described by the user"

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not all(rate > 0 for rate in self.peak_flops.values()):
            raise SettingError(f"device {self.name!r}: rates and bandwidth must be positive")


def _gpu(
    name: str, *, fp64: float, fp32: float, fp16: float, int8: float, tbs: float, tf32: float = 0
) -> Device:
    """Describe a GPU by its datasheet: TFLOP/s without sparsity, TB/s."""
    rates = {
        "float64": fp64,
        "float32": fp32,
        "tf32": tf32 or fp32,  # a GPU without it computes in float32
        "float16": fp16,
        "bfloat16": fp16,
        "int8": int8,
    }
    peaks = {dtype: rate * 1e12 for dtype, rate in rates.items()}
    return Device(name, peaks, tbs * 1e12, source="the vendor's datasheet, not measured")


DEVICES = {
    "h200": _gpu("NVIDIA H200 SXM", fp64=34, fp32=67, tf32=494, fp16=989, int8=1979, tbs=4.8),
    "h100": _gpu("NVIDIA H100 SXM", fp64=34, fp32=67, tf32=494, fp16=989, int8=1979, tbs=3.35),
    "a100": _gpu("NVIDIA A100 80GB", fp64=9.7, fp32=19.5, tf32=156, fp16=312, int8=624, tbs=2.04),
    "l40s": _gpu("NVIDIA L40S", fp64=1.4, fp32=91.6, tf32=183, fp16=362, int8=733, tbs=0.864),
    "l4": _gpu("NVIDIA L4", fp64=0.5, fp32=30.3, tf32=60, fp16=121, int8=242, tbs=0.3),
    "t4": _gpu("NVIDIA T4", fp64=0.25, fp32=8.1, fp16=65, int8=130, tbs=0.32),
}


@dataclass(frozen=True)
class HardwareEstimate(Coded):
    """An estimate, never a measurement.

    `at_best_s` is the roofline bound on that device. `here_at_best_s` is the same bound on the
    machine at hand, where the model really took `here_measured_s`; both are None when the machine
    was not measured. `expected_s` assumes that the model comes as close to the bound there as here.
    """

    device: Device
    at_best_s: float
    here_at_best_s: float | None
    here_measured_s: float
    examples: int | None
    price_per_hour: float | None = None
    notes: tuple[str, ...] = ()

    is_estimate: ClassVar = True
    also_written = (
        *("is_estimate", "device.name", "device.source", "at_best_s", "expected_s"),
        *("here_at_best_s", "here_measured_s", "optimism", "price_per_hour"),
        *("cost_at_best", "expected_cost"),
    )
    renames: ClassVar = {
        "device.name": "device",
        "device.source": "source",
        "cost_at_best": "cost_per_million_calls_at_best",
        "expected_cost": "cost_per_million_calls_expected",
        "device": None,
        "examples": None,
    }

    @property
    def optimism(self) -> float | None:
        """How many times longer than the bound the model takes on the machine at hand."""
        return self.here_measured_s / self.here_at_best_s if self.here_at_best_s else None

    @property
    def expected_s(self) -> float | None:
        return self.at_best_s * self.optimism if self.optimism is not None else None

    @property
    def cost_at_best(self) -> float | None:
        """The price of a million sequential calls on one device, at the bound."""
        return self._cost(self.at_best_s)

    @property
    def expected_cost(self) -> float | None:
        """The price of a million sequential calls on one device, as expected."""
        return self._cost(self.expected_s)

    def _cost(self, seconds: float | None) -> float | None:
        if seconds is None or self.price_per_hour is None:
            return None
        return 1e6 * seconds * self.price_per_hour / SECONDS_PER_HOUR


def find_device(name: str) -> Device:
    """Return a device by its short name."""
    if name not in DEVICES:
        raise SettingError(f"no description of device {name!r}; there are {', '.join(DEVICES)}")
    return DEVICES[name]


def estimate_on(
    profile: Profile, device: Device | str, *, price_per_hour: float | None = None
) -> HardwareEstimate:
    """Estimate by roofline what a profiled call takes, and costs, on another device."""
    target = find_device(device) if isinstance(device, str) else device
    check_number("price_per_hour", price_per_hour or 0, least=0)
    at_best, unknown = _roofline_seconds(profile, target)
    notes = _missing_rates(unknown, target)
    if left_out := [each.kind for each in profile.not_counted]:
        notes.append(f"not counted, so not in the estimate: {', '.join(left_out)}")
    here: float | None = None
    if profile.ceilings is not None:
        dtypes = {rate.dtype for rate in profile.ceilings.rates}
        peaks = {dtype: profile.ceilings.peak_flops(dtype) or 0.0 for dtype in dtypes}
        # What fits into a cache here is read from there, not from memory.
        bandwidth = profile.ceilings.bandwidth(profile.working_set_bytes)
        own = Device("this machine", peaks, bandwidth, source="measured")
        here, unknown = _roofline_seconds(profile, own)
        if unknown:
            here = None
            notes += _missing_rates(unknown, own)
    return HardwareEstimate(
        device=target,
        at_best_s=at_best,
        here_at_best_s=here,
        here_measured_s=profile.latency.median,
        examples=profile.examples,
        price_per_hour=price_per_hour,
        notes=tuple(notes),
    )


def _missing_rates(dtypes: Iterable[str], device: Device) -> list[str]:
    return [f"no rate for {each} on {device.name}: only its bytes count" for each in sorted(dtypes)]


def _roofline_seconds(profile: Profile, device: Device) -> tuple[float, set[str]]:
    """Sum over the operations the longer of computing and moving bytes.

    Beside the seconds stand the dtypes that the device has no rate for.
    """
    total, unknown = 0.0, set()
    for record in profile.operations:
        if record.cost is None:
            continue
        peak = device.peak_flops.get(record.dtype)
        if peak is None and record.all_flops:
            unknown.add(record.dtype)
        compute = record.all_flops / peak if peak else 0.0
        total += max(compute, record.bytes_moved / device.bandwidth)
    return total, unknown

"""A service in scripted time: sampled calls are drawn numbers instead of measured ones."""

import numpy as np

from tinytorch.monitoring.changes import ChangeDetector, Minute
from tinytorch.monitoring.reference import Calls

LAYERS = ("stem", "body", "head")
SHARES = np.array([0.3, 0.5, 0.2])
SIZES, MIX = (5, 8), (0.7, 0.3)
MEMORY = 200.0 * 2**20


class ScriptedService:
    """Draws minutes: the machine's speed wanders, calls are noisy, and faults change them."""

    def __init__(self, seed=0, calls=30):
        self.rng = np.random.default_rng(seed)
        self.calls = calls
        self.minute = 0
        self.pace = 0.0

    def next(self, *, slower=(1.0, 1.0, 1.0), machine=1.0, mix=MIX, memory=MEMORY):
        """Return the next minute; `slower` multiplies the time of each layer."""
        rng, n = self.rng, self.calls
        self.minute += 1
        self.pace = 0.8 * self.pace + 0.05 * rng.standard_normal()
        pace = machine * np.exp(self.pace)
        sizes = rng.choice(SIZES, n, p=mix)
        noise = np.exp(0.06 * rng.standard_normal((n, len(LAYERS))))
        layers = 1e-3 * SHARES * noise * np.where(sizes == 8, 3.0, 1.0)[:, None] * pace
        layers *= np.array(slower)
        calls = Calls(
            minutes=np.full(n, float(self.minute)),
            sizes=sizes.astype(float),
            in_flight=rng.integers(1, 4, n).astype(float),
            probes=1e-5 * pace * np.exp(0.05 * rng.standard_normal((n, 2))),
            total=layers.sum(1) * 1.02,
            layers=layers,
        )
        counts = dict(zip(SIZES, rng.multinomial(3000, mix).tolist(), strict=True))
        return Minute(60.0 * self.minute, counts, memory, calls)


def learned(seed=0, minutes=60):
    """Return a service and a detector that has learned its reference."""
    service, detector = ScriptedService(seed), ChangeDetector(LAYERS, minutes)
    for _ in range(minutes):
        detector.add(service.next())
    return service, detector


def first_change(service, detector, minutes=30, **fault):
    """Return the first change and after how many minutes of a fault it was noticed."""
    for minute in range(1, minutes + 1):
        found = detector.add(service.next(**fault))
        if found:
            return found[0], minute
    return None, minutes

"""Capturing without a device: replays run the step again, into the same output."""

import torch

from tinytorch.models.pytorch import tensors_in


class FakeCaptured:
    def __init__(self, step):
        self._step = step
        self.output = step()
        self.seconds, self.nbytes, self.pool = 0.5, 64, (0, 1)

    def replay(self):
        again = self._step()
        for static, tensor in zip(tensors_in(self.output), tensors_in(again), strict=True):
            static.copy_(tensor)
        return self.output


class FakeCapture:
    """Counts what it captures."""

    def __init__(self):
        self.count = 0

    def __call__(self, step, *, device, warmups=3, pool=None):
        self.count += 1
        with torch.random.fork_rng(devices=[]):
            for _ in range(warmups):
                step()
            return FakeCaptured(step)


def pretend_to_capture(monkeypatch):
    """Let models on a processor be captured; give the counter of captures."""
    from tinytorch.transforms.capture_graph import torch as capture_graph_torch
    from tinytorch.transforms.capture_graph import torch as captured_model_torch

    fake = FakeCapture()
    monkeypatch.setattr(captured_model_torch, "capture", fake)
    for module in (capture_graph_torch, captured_model_torch):
        monkeypatch.setattr(module, "why_not_captured", lambda device: "")
    # Nothing of the fake is on a device that would have to be waited for.
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    return fake

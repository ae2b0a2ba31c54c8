import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.errors import BackendError
from tinytorch.measure import ceilings_torch
from tinytorch.measure.ceilings import Ceilings
from tinytorch.measure.ceilings_torch import (
    CudaEventClock,
    identify_cuda,
    measure_cuda,
    torch_rates,
)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def ignore(text):
    pass


def test_every_dtype_has_a_rate_or_a_reason(monkeypatch):
    monkeypatch.setattr(ceilings_torch, "CPU_SIZES", (32,))
    told = []
    rates, refused = torch_rates(budget_s=0.1, advance=told.append)
    named = {rate.dtype for rate in rates} | {key.removesuffix(" rate") for key in refused}
    assert named == set(ceilings_torch.CPU_DTYPES)
    assert {rate.library for rate in rates} == {"torch"}
    assert min(rate.samples.minimum for rate in rates) > 0
    assert len(told) == len(ceilings_torch.CPU_DTYPES)


def test_a_dtype_that_fails_is_named_with_what_torch_said(monkeypatch):
    monkeypatch.setattr(ceilings_torch, "CPU_SIZES", (32,))
    monkeypatch.setattr(ceilings_torch, "CPU_DTYPES", ("float32", "int8"))

    def refuse(left, right):
        raise RuntimeError("not on this machine\nand a long trace")

    monkeypatch.setattr(torch, "_int_mm", refuse)
    rates, refused = torch_rates(budget_s=0.05, advance=ignore)
    assert [rate.dtype for rate in rates] == ["float32"]
    assert refused == {"int8 rate": "RuntimeError: not on this machine"}


@pytest.mark.parametrize("dtype", ceilings_torch.CPU_DTYPES)
def test_what_is_timed_is_a_matrix_product_of_that_dtype(dtype):
    size = 32
    product = ceilings_torch._product(dtype, torch.device("cpu"))(size)()
    assert tuple(product.shape) == (size, size)
    assert product.dtype == (torch.int32 if dtype == "int8" else getattr(torch, dtype))
    assert torch.count_nonzero(product) > 0.9 * size**2


def test_the_mode_of_float32_is_put_back():
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    with ceilings_torch._float32_mode("tf32", True):
        assert settings.fp32_precision == "tf32"
    with ceilings_torch._float32_mode("float32", True):
        assert settings.fp32_precision == "ieee"
    assert settings.fp32_precision == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_error_says_why():
    with pytest.raises(BackendError, match=r"device 'cuda': this PyTorch \(.*\) (finds|was built)"):
        identify_cuda("cuda", "machine")


def test_a_cuda_device_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BackendError, match="device 'cuda:2': there are 2, counted from cuda:0"):
        identify_cuda("cuda:2", "machine")


@needs_cuda
def test_a_cuda_device_is_measured():
    name, fingerprint = identify_cuda("cuda", "machine")
    before = torch.cuda.memory_reserved()
    found = measure_cuda(name, fingerprint, seconds=1.0, progress=None)
    assert Ceilings.from_dict(found.to_dict()) == found
    assert found.bandwidths[-1].level == "HBM"
    measured = {rate.dtype for rate in found.rates}
    assert {"float32", "float16"} <= measured
    assert found.peak_flops("float16") > found.peak_flops("float32")
    # Libraries keep workspaces; what the driver takes for their code is not ours to give back.
    assert torch.cuda.memory_reserved() <= before + (64 << 20)


@needs_cuda
def test_the_clock_of_the_device_sees_more_loops_take_longer():
    clock = CudaEventClock(torch.device("cuda", 0))
    left = torch.randn(1024, 1024, device="cuda")
    clock.time(lambda: left @ left, 3)
    assert clock.time(lambda: left @ left, 50) > clock.time(lambda: left @ left, 1) > 0

import logging
import re
import subprocess
import sys

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torchao")

from torch_workloads import ADAPTER, held, seeded

from tinytorch.errors import BackendError
from tinytorch.models.pytorch_compile import without_noise
from tinytorch.transforms.quantize import quantizers as torchao_torch
from tinytorch.transforms.quantize.quantizers import (
    AO_DYNAMIC,
    AO_EMBEDDING,
    AO_INT4_CPU,
    AO_INT4_CUDA,
    AO_KERNELS,
    AO_STATIC,
    AO_WEIGHT,
    import_torchao,
    torchao_version,
)

SETTINGS = {
    "device": "cpu",
    "group_size": 32,
    "input_range": (-4.0, 4.0),
    "input_axes": (2,),
}


def linear():
    return seeded(nn.Linear, 96, 64)


@pytest.mark.parametrize(
    ("quantizer", "make", "x", "error"),
    [
        (AO_WEIGHT, linear, torch.ones(3, 96), 0.01),
        (AO_DYNAMIC, linear, torch.ones(3, 96), 0.02),
        (AO_STATIC, linear, torch.ones(3, 96), 0.03),
        (AO_INT4_CPU, linear, torch.ones(3, 96), 0.2),
        (AO_KERNELS, lambda: seeded(nn.Conv2d, 16, 8, 3), torch.ones(2, 16, 5, 5), 0.02),
        (AO_EMBEDDING, lambda: seeded(nn.Embedding, 32, 64), torch.arange(4), 0.01),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_follow_from_the_shapes_and_outputs_stay_close(quantizer, make, x, error, dtype):
    layer = make().to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    expected, before = layer(x), held(layer)
    weight = layer.weight.numel() * layer.weight.element_size()
    predicted = quantizer.weight_bytes(layer, SETTINGS)
    assert quantizer.why_not(layer, SETTINGS) == ""
    changed = quantizer.carry_out(layer, SETTINGS)
    assert held(changed) == before - weight + predicted
    with torch.no_grad():
        off = (changed(x) - expected).float().norm() / expected.float().norm()
    # Eight bits give about 0.5% per factor, bfloat16 has as much of its own; four bits 16 times.
    assert off < error


def test_the_padding_of_int4_on_a_gpu_is_counted():
    layer = nn.Linear(768, 12, dtype=torch.bfloat16)
    # 12 outputs become 16 and 768 inputs 1024; a group has two numbers of two bytes.
    assert AO_INT4_CUDA.weight_bytes(layer, SETTINGS) == 16 * (1024 // 2 + 1024 // 32 * 4)


@pytest.mark.parametrize(
    ("quantizer", "layer", "settings", "reason"),
    [
        (AO_INT4_CPU, nn.Linear(96, 24), {}, "24 outputs are no multiple of 16"),
        (AO_INT4_CPU, nn.Linear(48, 32), {}, "48 inputs are no multiple of group_size=32"),
        (AO_INT4_CPU, nn.Linear(96, 32), {"group_size": 48}, r"groups of 48 .* \(32, 64, 128\)"),
        (
            AO_DYNAMIC,
            nn.Linear(32, 31),
            {"device": "cuda"},
            "32 inputs and 31 outputs must be mult",
        ),
        (AO_STATIC, nn.Linear(32, 31), {"device": "cuda"}, "multiples of 8"),
        (AO_STATIC, nn.Linear(32, 32), {"input_axes": (2, 3)}, r"have \(2, 3\) axes"),
        (AO_EMBEDDING, nn.Embedding(3, 4, max_norm=1.0), {}, "changed while they are looked up"),
    ],
)
def test_what_cannot_be_has_a_reason(quantizer, layer, settings, reason):
    assert re.search(reason, quantizer.why_not(layer, SETTINGS | settings))


def test_copies_do_not_hold_on_to_the_layer_that_they_were_made_from():
    changed = AO_WEIGHT.carry_out(linear(), SETTINGS)
    assert "extra_repr" not in vars(changed)
    twin = ADAPTER.clone(changed)
    assert held(twin) == held(changed)


@pytest.mark.slow
def test_it_is_imported_when_it_is_needed_and_in_silence():
    script = (
        "import sys, torch\n"
        "from tinytorch.transforms.quantize.quantizers import import_torchao, torchao_version\n"
        "assert torchao_version() and 'torchao' not in sys.modules\n"
        "import_torchao()\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_only_the_noise_of_the_import_is_dropped(caplog):
    logger = logging.getLogger("torchao")
    with without_noise():
        logger.warning("Failed to load some.so")
        logger.warning("something else")
    logger.warning("Failed to load another")
    assert caplog.messages == ["something else", "Failed to load another"]


def test_without_torchao_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torchao_torch.util, "find_spec", lambda name: None)
    assert torchao_version() is None
    with pytest.raises(BackendError, match="pip install torchao"):
        import_torchao()


def test_a_folder_on_the_path_has_no_version(monkeypatch):
    def missing(name):
        raise torchao_torch.metadata.PackageNotFoundError

    monkeypatch.setattr(torchao_torch.metadata, "version", missing)
    assert torchao_version() == "of unknown version"

"""What makes it faster? Kernels chosen by measurement, backends for a block, a model, a process."""

from tinytorch.core.checkpointing import checkpoint, checkpoint_layers, remove_checkpoints
from tinytorch.core.dispatch import set_backend, use_backend
from tinytorch.perf.acceleration.choosing import Race
from tinytorch.perf.acceleration.classic_kernels import (
    fused_gelu,
    tiled_matmul,
    unfused_gelu,
    vectorized_matmul,
)
from tinytorch.perf.acceleration.compiled_kernels import CompiledKernels
from tinytorch.perf.acceleration.fuse_layers import FuseLayers
from tinytorch.perf.acceleration.kernel_choice import Choice, KernelReport, Rival
from tinytorch.perf.acceleration.model_backend import model_backend, set_model_backend
from tinytorch.perf.acceleration.optimized_backend import OptimizedBackend

__all__ = [
    "Choice",
    "CompiledKernels",
    "FuseLayers",
    "KernelReport",
    "OptimizedBackend",
    "Race",
    "Rival",
    "checkpoint",
    "checkpoint_layers",
    "fused_gelu",
    "model_backend",
    "remove_checkpoints",
    "set_backend",
    "set_model_backend",
    "tiled_matmul",
    "unfused_gelu",
    "use_backend",
    "vectorized_matmul",
]

"""What makes it faster? Kernels chosen by measurement, backends for a block, a model, a process."""

from tinytorch.core.checkpointing import checkpoint, checkpoint_layers, remove_checkpoints
from tinytorch.core.dispatch import set_backend, use_backend
from tinytorch.perf.acceleration.capture_graph import CaptureGraph
from tinytorch.perf.acceleration.channels_last import ChannelsLast
from tinytorch.perf.acceleration.choosing import Race
from tinytorch.perf.acceleration.classic_kernels import (
    fused_gelu,
    tiled_matmul,
    unfused_gelu,
    vectorized_matmul,
)
from tinytorch.perf.acceleration.compile_model import CompileModel
from tinytorch.perf.acceleration.compiled_kernels import CompiledKernels
from tinytorch.perf.acceleration.fold_batch_norm import FoldBatchNorm
from tinytorch.perf.acceleration.fuse_attention import FuseAttention
from tinytorch.perf.acceleration.fuse_layers import FuseLayers
from tinytorch.perf.acceleration.inference_mode import InferenceMode
from tinytorch.perf.acceleration.kernel_choice import Choice, KernelReport, Rival
from tinytorch.perf.acceleration.lower_precision import LowerPrecision
from tinytorch.perf.acceleration.model_backend import model_backend, set_model_backend
from tinytorch.perf.acceleration.optimized_backend import OptimizedBackend
from tinytorch.perf.acceleration.pinned_transfers import PinnedTransfers, prefetching
from tinytorch.perf.acceleration.set_threads import SetThreads
from tinytorch.perf.acceleration.size_advice import SizeAdvice
from tinytorch.perf.acceleration.size_advisor import advise_batch_size, advise_sequence_length
from tinytorch.perf.acceleration.tensor_float32 import TensorFloat32

__all__ = [
    "CaptureGraph",
    "ChannelsLast",
    "Choice",
    "CompileModel",
    "CompiledKernels",
    "FoldBatchNorm",
    "FuseAttention",
    "FuseLayers",
    "InferenceMode",
    "KernelReport",
    "LowerPrecision",
    "OptimizedBackend",
    "PinnedTransfers",
    "Race",
    "Rival",
    "SetThreads",
    "SizeAdvice",
    "TensorFloat32",
    "advise_batch_size",
    "advise_sequence_length",
    "checkpoint",
    "checkpoint_layers",
    "fused_gelu",
    "model_backend",
    "prefetching",
    "remove_checkpoints",
    "set_backend",
    "set_model_backend",
    "tiled_matmul",
    "unfused_gelu",
    "use_backend",
    "vectorized_matmul",
]

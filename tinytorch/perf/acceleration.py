"""What makes it faster? Kernels chosen by measurement, backends for a block, a model, a process."""

from tinytorch.core.checkpointing import checkpoint, checkpoint_layers, remove_checkpoints
from tinytorch.core.dispatch import set_backend, use_backend
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.kernel_choice import (
    Choice,
    KernelReport,
    Race,
    Rival,
    model_backend,
    set_model_backend,
)
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.optimized_backend import (
    OptimizedBackend,
    fused_gelu,
    tiled_matmul,
    unfused_gelu,
    vectorized_matmul,
)
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.tensor_float32 import TensorFloat32
from tinytorch.tuning.sizes import SizeAdvice, advise_batch_size, advise_sequence_length

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
    "remove_checkpoints",
    "set_backend",
    "set_model_backend",
    "tiled_matmul",
    "unfused_gelu",
    "use_backend",
    "vectorized_matmul",
]

"""What makes it smaller and faster? Pruning, structure, low rank, distillation, files."""

from tinytorch.transforms.compressed_file import load_compressed, save_compressed
from tinytorch.transforms.compression import (
    CompressionResult,
    Compressor,
    MagnitudePruner,
    ModelCompressor,
    StructuredPruner,
    magnitude_prune,
    measure_sparsity,
    structured_prune,
)
from tinytorch.transforms.deployment import Deployment, deployment_report
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.low_rank import LowRank, low_rank_approximate
from tinytorch.transforms.prune import Masks, Prune
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.sparse_layers import (
    Crossover,
    SparseLayers,
    SparseLinear,
    measure_crossover,
)
from tinytorch.transforms.support.training import (
    ConstrainedOptimizer,
    CubicSchedule,
    LinearSchedule,
    OneShotSchedule,
    fine_tune,
)

__all__ = [
    "CompressionResult",
    "Compressor",
    "ConstrainedOptimizer",
    "Crossover",
    "CubicSchedule",
    "Deployment",
    "KnowledgeDistillation",
    "LinearSchedule",
    "LowRank",
    "MagnitudePruner",
    "Masks",
    "ModelCompressor",
    "OneShotSchedule",
    "Prune",
    "RemoveChannels",
    "RemoveLayers",
    "SparseLayers",
    "SparseLinear",
    "StructuredPruner",
    "deployment_report",
    "fine_tune",
    "load_compressed",
    "low_rank_approximate",
    "magnitude_prune",
    "measure_crossover",
    "measure_sparsity",
    "save_compressed",
    "structured_prune",
]

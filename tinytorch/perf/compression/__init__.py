"""What makes it smaller and faster? Pruning, structure, low rank, sharing, distillation, files."""

from tinytorch.perf.compression.classic_functions import (
    Compressor,
    MagnitudePruner,
    StructuredPruner,
    magnitude_prune,
    measure_sparsity,
    structured_prune,
)
from tinytorch.perf.compression.compressed_model import load_compressed, save_compressed
from tinytorch.perf.compression.compression_result import CompressionResult
from tinytorch.perf.compression.constrained_training import ConstrainedOptimizer
from tinytorch.perf.compression.crossover import Crossover, measure_crossover
from tinytorch.perf.compression.deployment import Deployment, deployment_report
from tinytorch.perf.compression.distillation import KnowledgeDistillation
from tinytorch.perf.compression.fine_tuning import fine_tune
from tinytorch.perf.compression.low_rank import LowRank, low_rank_approximate
from tinytorch.perf.compression.masks import Masks
from tinytorch.perf.compression.model_compressor import ModelCompressor
from tinytorch.perf.compression.prune import Prune
from tinytorch.perf.compression.remove_channels import RemoveChannels
from tinytorch.perf.compression.remove_layers import RemoveLayers
from tinytorch.perf.compression.share_weights import ShareWeights
from tinytorch.perf.compression.shared_weight_layers import SharedWeightConv2d, SharedWeightLinear
from tinytorch.perf.compression.sparse_layers import SparseLayers
from tinytorch.perf.compression.sparse_linear import SparseLinear
from tinytorch.perf.compression.sparsity_schedules import (
    CubicSchedule,
    LinearSchedule,
    OneShotSchedule,
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
    "ShareWeights",
    "SharedWeightConv2d",
    "SharedWeightLinear",
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

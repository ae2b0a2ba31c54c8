"""What makes it smaller and faster? Pruning, structure, low rank, distillation, files."""

from tinytorch.transforms.compressed_file import load_compressed as load_compressed
from tinytorch.transforms.compressed_file import save_compressed as save_compressed
from tinytorch.transforms.compression import CompressionResult as CompressionResult
from tinytorch.transforms.compression import Compressor as Compressor
from tinytorch.transforms.compression import MagnitudePruner as MagnitudePruner
from tinytorch.transforms.compression import ModelCompressor as ModelCompressor
from tinytorch.transforms.compression import StructuredPruner as StructuredPruner
from tinytorch.transforms.compression import magnitude_prune as magnitude_prune
from tinytorch.transforms.compression import measure_sparsity as measure_sparsity
from tinytorch.transforms.compression import structured_prune as structured_prune
from tinytorch.transforms.distillation import KnowledgeDistillation as KnowledgeDistillation
from tinytorch.transforms.low_rank import LowRank as LowRank
from tinytorch.transforms.low_rank import low_rank_approximate as low_rank_approximate
from tinytorch.transforms.prune import Masks as Masks
from tinytorch.transforms.prune import Prune as Prune
from tinytorch.transforms.remove_channels import RemoveChannels as RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers as RemoveLayers
from tinytorch.transforms.sparse_layers import SparseLayers as SparseLayers
from tinytorch.transforms.sparse_layers import SparseLinear as SparseLinear
from tinytorch.transforms.support.training import ConstrainedOptimizer as ConstrainedOptimizer
from tinytorch.transforms.support.training import CubicSchedule as CubicSchedule
from tinytorch.transforms.support.training import fine_tune as fine_tune

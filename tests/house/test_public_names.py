"""The public names, module by module. A name that leaves this page breaks somebody's program."""

import importlib

import pytest
from project_files import PACKAGE, dotted_name

PUBLIC = {
    "tinytorch": {
        "Comparison",
        "Isolated",
        "Profile",
        "Tensor",
        "Workload",
        "__version__",
        "compare",
        "load_workload",
        "no_grad",
        "profile_model",
        "profile_workload",
        "set_backend",
        "use_backend",
    },
    "tinytorch.perf.acceleration": {
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
    },
    "tinytorch.perf.benchmarking": {
        "Benchmark",
        "BenchmarkResult",
        "BenchmarkSuite",
        "MLPerf",
        "Performance",
        "PerformanceTable",
        "benchmark_suite",
        "measure_performance",
        "plot_performance_comparison",
    },
    "tinytorch.perf.memoization": {
        "CachePoint",
        "CacheTradeoff",
        "CachedMultiHeadAttention",
        "KVCache",
        "MemoStatistics",
        "disable_kv_cache",
        "enable_kv_cache",
        "measure_cache_tradeoff",
        "memoize",
    },
    "tinytorch.perf.quantization": {
        "Calibration",
        "INT8Quantizer",
        "Quantize",
        "QuantizedConv2d",
        "QuantizedEmbedding",
        "QuantizedLinear",
        "QuantizedPositionalEmbedding",
        "Quantizer",
        "Sensitivity",
        "analyze_model_sizes",
        "dequantize_int8",
        "fine_tune",
        "load_quantized",
        "measure_sensitivity",
        "quantize_int8",
        "quantize_model",
        "save_quantized",
        "verify_quantization_works",
    },
    "tinytorch.perf.profiling": {
        "FLOPCounter",
        "MemoryProfiler",
        "MemoryTracker",
        "Profiler",
        "ProfilerContext",
        "SimpleProfiler",
        "Timer",
        "amdahl",
        "analyze_weight_distribution",
        "classify_bound",
        "count_flops",
        "predict_scaling",
        "profile",
        "profile_function",
        "profile_memory",
        "profile_model",
        "profile_workload",
        "quick_profile",
        "training_memory",
    },
    "tinytorch.core.tensor": {"Parameter", "Tensor", "apply", "concatenate", "stack", "where"},
    "tinytorch.core.autograd": {
        "backward",
        "check_gradients",
        "enable_autograd",
        "is_grad_enabled",
        "no_grad",
    },
    "tinytorch.core.dispatch": {
        "ArraySpec",
        "KernelCall",
        "Recorder",
        "active_backend",
        "recording",
        "run",
        "set_backend",
        "use_backend",
    },
    "tinytorch.core.checkpointing": {"checkpoint", "checkpoint_layers", "remove_checkpoints"},
    "tinytorch.core.module": {
        "Execution",
        "HookHandle",
        "Module",
        "check_floating_point",
        "entry_point",
        "keeping_modes",
        "naming",
    },
    "tinytorch.core.activations": {"GELU", "LogSoftmax", "ReLU", "Sigmoid", "Softmax", "Tanh"},
    "tinytorch.core.layers": {
        "Dropout",
        "GELU",
        "Linear",
        "LogSoftmax",
        "Module",
        "Parameter",
        "ReLU",
        "Sequential",
        "Sigmoid",
        "Softmax",
        "Tanh",
    },
    "tinytorch.core.losses": {"BinaryCrossEntropyLoss", "CrossEntropyLoss", "MSELoss"},
    "tinytorch.core.optimizers": {"Adam", "AdamW", "Optimizer", "SGD"},
    "tinytorch.core.spatial": {"AvgPool2d", "BatchNorm2d", "Conv2d", "Flatten", "MaxPool2d"},
    "tinytorch.core.embeddings": {
        "CheckedIds",
        "Embedding",
        "PositionalEmbedding",
        "SinusoidalEncoding",
        "token_ids",
    },
    "tinytorch.core.attention": {"KVCache", "MultiHeadAttention", "scaled_dot_product_attention"},
    "tinytorch.core.kv_cache": {"KVCache"},
    "tinytorch.core.sampling": {"Sampler"},
    "tinytorch.core.transformers": {
        "GPT",
        "LayerNorm",
        "TiedHead",
        "TinyGPT",
        "Transformer",
        "TransformerBlock",
    },
    "tinytorch.core.generation": {
        "Continuation",
        "OnToken",
        "Prompts",
        "cache_for",
        "check_count",
        "continue_prompts",
        "read_prompts",
        "without_attached_cache",
    },
    "tinytorch.core.gpt2_checkpoint": {"read_gpt2"},
    "tinytorch.core.dataloader": {"DataLoader", "Dataset", "TensorDataset"},
    "tinytorch.core.training": {
        "ConstantSchedule",
        "CosineSchedule",
        "EarlyStopping",
        "Epoch",
        "History",
        "StepSchedule",
        "Trainer",
        "accuracy",
        "clip_grad_norm",
    },
    "tinytorch.core.progress": {"ProgressLine"},
    "tinytorch.core.tokenization": {"BPETokenizer", "CharTokenizer"},
    "tinytorch.core.checkpoints": {
        "load_checkpoint",
        "read_arrays",
        "save_checkpoint",
        "write_arrays",
    },
    "tinytorch.core.files": {"cache_folder", "write_atomically"},
    "tinytorch.core.memory": {"keep_freed_memory"},
    "tinytorch.workloads.plan": {"Gain", "Plan", "Skipped", "Step", "Transform"},
    "tinytorch.workloads.targets": {"import_place", "load_workload"},
    "tinytorch.workloads.workload": {"Scores", "Workload", "call_model"},
    "tinytorch.workloads.zoo": {
        "ZOO",
        "build_cnn",
        "build_gpt",
        "build_mlp",
        "digit_data",
        "load_zoo",
        "text_data",
    },
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module):
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_this_page_has_every_module_of_the_framework():
    files = sorted((PACKAGE / "core").glob("[!_]*.py"))
    assert [path.stem for path in files if dotted_name(path) not in PUBLIC] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_can_be_imported(module):
    found = importlib.import_module(module)
    assert [name for name in sorted(PUBLIC[module]) if not hasattr(found, name)] == []


def test_an_unknown_name_is_an_attribute_error():
    tinytorch = importlib.import_module("tinytorch")
    with pytest.raises(AttributeError, match="'tinytorch' has no attribute 'no_such_name'"):
        tinytorch.no_such_name  # noqa: B018


def test_the_lazy_names_show_in_dir():
    tinytorch = importlib.import_module("tinytorch")
    assert set(tinytorch.__all__) <= set(dir(tinytorch))

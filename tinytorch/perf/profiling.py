"""Why is it slow? Time, memory, FLOPs and the bottleneck of models and functions."""

from tinytorch.measure.roofline import amdahl, classify_bound
from tinytorch.profiling.context import ProfilerContext, SimpleProfiler, profile, profile_function
from tinytorch.profiling.flops import FLOPCounter, count_flops
from tinytorch.profiling.memory_profiler import MemoryProfiler, MemoryTracker, profile_memory
from tinytorch.profiling.model_profile import profile_model, profile_workload
from tinytorch.profiling.profiler import Profiler, quick_profile
from tinytorch.profiling.size_laws import predict_scaling
from tinytorch.profiling.timer import Timer
from tinytorch.profiling.weights import analyze_weight_distribution, training_memory

__all__ = [
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
]

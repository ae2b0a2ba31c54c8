"""Why is it slow? Time, memory, FLOPs and the bottleneck of models and functions."""

from tinytorch.measure.amdahl import amdahl
from tinytorch.measure.roofline import classify_bound
from tinytorch.measure.scaling import predict_scaling
from tinytorch.perf.profiling.context import ProfilerContext
from tinytorch.perf.profiling.flop_counter import FLOPCounter
from tinytorch.perf.profiling.flops import count_flops
from tinytorch.perf.profiling.memory_profiler import MemoryProfiler, MemoryTracker, profile_memory
from tinytorch.perf.profiling.model_profile import profile_model, profile_workload
from tinytorch.perf.profiling.profiler import Profiler
from tinytorch.perf.profiling.quick import quick_profile
from tinytorch.perf.profiling.simple import SimpleProfiler, profile, profile_function
from tinytorch.perf.profiling.timer import Timer
from tinytorch.perf.profiling.training_bytes import training_memory
from tinytorch.perf.profiling.weights import analyze_weight_distribution

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

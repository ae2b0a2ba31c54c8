"""Why is it slow? Time, memory, FLOPs and the bottleneck of models and functions."""

from tinytorch.measure.roofline import amdahl as amdahl
from tinytorch.measure.roofline import classify_bound as classify_bound
from tinytorch.profiling.context import ProfilerContext as ProfilerContext
from tinytorch.profiling.context import SimpleProfiler as SimpleProfiler
from tinytorch.profiling.context import profile as profile
from tinytorch.profiling.context import profile_function as profile_function
from tinytorch.profiling.flops import FLOPCounter as FLOPCounter
from tinytorch.profiling.flops import count_flops as count_flops
from tinytorch.profiling.memory_profiler import MemoryProfiler as MemoryProfiler
from tinytorch.profiling.memory_profiler import MemoryTracker as MemoryTracker
from tinytorch.profiling.memory_profiler import profile_memory as profile_memory
from tinytorch.profiling.model_profile import profile_model as profile_model
from tinytorch.profiling.model_profile import profile_workload as profile_workload
from tinytorch.profiling.profiler import Profiler as Profiler
from tinytorch.profiling.profiler import analyze_weight_distribution as analyze_weight_distribution
from tinytorch.profiling.profiler import quick_profile as quick_profile
from tinytorch.profiling.profiler import training_memory as training_memory
from tinytorch.profiling.size_laws import predict_scaling as predict_scaling
from tinytorch.profiling.timer import Timer as Timer

"""Why is it slow? (names filled in below)"""
from tinytorch.perf.profiling.flops import count_flops
__all__=["count_flops"]

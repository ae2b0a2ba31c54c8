"""Profiling: a profile and its views, scaling with size, estimates for other devices."""

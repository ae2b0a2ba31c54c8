"""Continuous profiling in a service: latency, layer times, changes, at the cost of microseconds."""

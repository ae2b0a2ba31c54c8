"""Benchmarking: suites, scenarios, and what the classic benchmark classes need."""

"""Measuring: clocks, samples and their statistics, memory, the machine and its ceilings.

Nothing here knows about models or frameworks.
"""

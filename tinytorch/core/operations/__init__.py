"""Differentiable operations: each is one small class with its forward and its derivative.

They work on arrays and know nothing of tensors; :func:`tinytorch.core.tensor.apply` runs one and
links it into the graph.
"""

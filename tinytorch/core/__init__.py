"""The NumPy framework: tensors, autograd, layers, training.

Data flows in one direction, and so do the imports: ``kernels`` compute on arrays, ``dispatch``
picks the backend and shows what ran to recorders, ``operations`` pair each forward with its
derivative, ``autograd`` walks the graph, ``tensor`` adds operators, ``module`` makes trees of
parameters, and the layers build on it.
"""

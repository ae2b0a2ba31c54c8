"""One adapter per framework: walk a model, watch its layers, record what runs."""

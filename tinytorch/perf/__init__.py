"""The stages: profiling today. None imports another; what two need goes up."""

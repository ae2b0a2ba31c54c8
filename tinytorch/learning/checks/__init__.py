"""The checks of each lab: `CHECKS` of a module maps a step to its checks, in their order."""

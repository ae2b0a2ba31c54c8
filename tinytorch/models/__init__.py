"""Models: workloads, targets, the zoo, adapters for both frameworks, operation records, costs."""

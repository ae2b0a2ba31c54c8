"""The loop: advice from a profile, transforms tried and proved, what to keep."""

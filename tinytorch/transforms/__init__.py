"""Transforms: what makes a model faster or smaller, one file or folder each."""

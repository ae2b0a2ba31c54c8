"""Runs that are kept: records, folders of them, signatures, and whether they were changed."""

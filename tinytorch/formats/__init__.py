"""Formats: arithmetic on arrays, packing, and the files that hold them.

Nothing here knows about models.
"""

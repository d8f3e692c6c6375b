"""A finished sweep as one file to cite: `packing` writes it, `unpacking` verifies and opens it.

Nothing here computes a score: the commands give the table.
"""

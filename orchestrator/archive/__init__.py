"""A finished sweep as one file to cite: what goes into it, and how it is opened safely.

A pack is a zip. `manifest` lists its members with size and sha256, `packing` writes it, `secrets`
keeps keys and tokens out, and `unpacking` verifies it and refuses what could harm a reader's
machine. Nothing here computes a score: the commands give the table.
"""

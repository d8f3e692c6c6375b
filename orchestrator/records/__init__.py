"""The run directory, which is the only truth, and everything that knows its layout.

Imports `errors` and `config`. Whoever wants to know or note what became of a unit asks here; no other room spells a
path inside a run directory.
"""

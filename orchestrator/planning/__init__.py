"""The cost of a sweep before it runs: units, memory, tokens, GPU-hours.

Imports `experiment`, `engines`, `selection` and `records`. Runs nothing, and loads no model.
"""

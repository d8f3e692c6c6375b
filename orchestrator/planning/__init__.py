"""The cost of a sweep before it runs: units, memory, tokens, GPU-hours.

Imports `experiment`, `engines.memory`, `selection` and what reads `records`. Runs nothing, and
loads no model.
"""

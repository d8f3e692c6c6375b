"""What a sweep will cost: units, memory, tokens, GPU-hours, CPU minutes.

Imports `experiment`, `engines.memory`, `selection` and what reads `records`. Runs nothing, and loads no model.
"""

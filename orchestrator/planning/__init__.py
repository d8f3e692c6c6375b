"""What a sweep will cost: units, memory, tokens, GPU-hours, CPU minutes.

Imports `experiment`, `engines.memory` and `selection`. Runs nothing, and loads no model.
"""

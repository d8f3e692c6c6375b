"""Used by all engines: rows and their packing, passes of a model, scores, losses, and the rounds of
blending.

Imports no engine. `torch/`, `sglang/` and `verl/` import it.
"""

"""Used by all engines: packing of rows, passes of a model, scores, losses, rounds of blending.

Imports no engine. `torch/`, `sglang/` and `verl/` import it.
"""

"""Where models come from: a folder, a hub, or a recipe; and the values that identify each.

Imports `data`, `engines.interface`, `engines.memory` and `records`. Opens no checkpoints of runs.
"""

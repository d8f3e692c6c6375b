"""Where models come from: a folder, a hub, or a recipe; and the values that identify each.

`locate` finds a model and checks it against the setup. `make` copies shipped models, and makes
others in child processes by their `recipes`. `folders` and `weights` read model folders. `identity`
names the values that ids are made of.

Imports `data`, `engines.interface`, `engines.memory` and `records`. Opens no checkpoints of runs.
"""

"""Missing units over a laptop or a cluster: Tune, processes that die or freeze, and what must be there before.

Imports `trial`, `models`, `selection`. With `workers.actors` the only place where ray is imported.

`failures` tells what happens after a kill or another failure. `nodes` gives work to those nodes that meet the
`requirements`.
"""

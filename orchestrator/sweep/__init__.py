"""Runs missing units on a laptop or a cluster, with Ray Tune, through the death of any process.

Imports `trial`, `models`, `selection` and `monitor`. Only this room and `workers.actors` import
ray.

`failures` decides the response to a kill or another failure. `nodes` gives work to the nodes that
meet the `requirements`.
"""

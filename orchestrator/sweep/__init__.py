"""Runs missing units on a laptop or a cluster, with Ray Tune, through the death of any process.

Imports `trial`, `models`, `selection` and `monitor`. Only this room and `workers.actors` import
ray.

`tuner` is one long Tuner. Whenever there is room it asks `schedule` what runs next, and is told to
wait while nothing is ready: supervised stages come first, then family by family, the smallest
first; evaluators take the room that no unit waits for. `processes` is the work of Tune's processes.
`failures` decides the response to a kill or another failure. `asking` gets the later points of a
search from Optuna.

On several nodes the runs folder is one file system that all of them see, and models and data lie at
the same paths. `nodes` asks every node whether that holds, and gives work to those where it does;
one that joins later gets work once it has answered. Work that begins on a node without its needs
goes back to the schedule and counts as no attempt.
"""

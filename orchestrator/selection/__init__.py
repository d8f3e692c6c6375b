"""Projections of the records: scores, races, wanted samples, retention, damage.

Imports `experiment` and `records`. Each module computes its answer from the run directories: no
decision is stored, and none is made twice. `samples_wanted` decides that a checkpoint gets more
samples, and `halving` which settings of a search go on. The points that a search asked of Optuna are
kept (`asking`), since another version of it may answer otherwise.
"""

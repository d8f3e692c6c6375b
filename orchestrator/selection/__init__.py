"""Projections of the records: scores, races, wanted samples, retention, damage.

Imports `experiment` and `records`. Everything here is a projection of run directories: nothing is decided twice, and no
decision is stored. `samples_wanted` decides that a checkpoint gets more samples.
"""

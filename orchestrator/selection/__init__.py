"""What the records say: scores, races, the samples still wanted, what is kept, what is damaged.

Imports `experiment` and `records`. Everything here is a projection of run directories: nothing is decided twice, and no
decision is stored. `samples_wanted` decides that a checkpoint gets more samples.
"""

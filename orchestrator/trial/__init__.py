"""The loops of worker processes: a unit's steps and commits, an evaluator's slices, the probe.

Imports `workers` and the rooms below. Runs inside a worker process and is independent of the sweep
around it.
"""

"""The loops of worker processes: a unit with its steps and commits, an evaluator with its slices,
and the probe.

Imports `workers` and the rooms below. Runs inside a worker process and is independent of the sweep
around it.
"""

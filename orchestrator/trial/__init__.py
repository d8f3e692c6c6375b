"""The loops of processes: a unit with its steps and commits, an evaluator with its slices, and the probe.

Imports `workers` and what is below. Runs inside a worker process; knows nothing of the sweep around it.
"""

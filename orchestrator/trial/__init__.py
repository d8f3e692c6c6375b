"""The loop of one unit: its steps, its commits, its evaluations, and the probe.

Imports `workers` and what is below. Runs inside a worker process; knows nothing of the sweep around it.
"""

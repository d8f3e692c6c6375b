"""An experiment file → units and their ids, and the evaluations that it asks for; no torch, no ray.

Imports `data`, `grading`, `policy.spec` and what is below. `methods` has a row for each method, `identity` what an id
is made of, `evaluations` how many samples a checkpoint is to get.
"""

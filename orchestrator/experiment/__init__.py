"""An experiment file → units and their ids, and the evaluations that it asks for; no torch, no ray.

Imports `data`, `grading`, `policy.spec` and the rooms below. `methods` has a row for each method,
`identity` lists the parts of an id, and `evaluation_protocol` gives the number of samples for a
checkpoint.
"""

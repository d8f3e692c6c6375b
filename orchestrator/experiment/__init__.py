"""An experiment file → units and their ids, and the evaluations that it asks for; no torch, no ray.

Imports `data`, `grading`, `policy.spec` and the rooms below. `load` finds, merges, completes and
checks a file, `reading` makes typed values of YAML, and `validate` has rules between keys. `axes`
and `search` turn keys and ranges into settings. `methods` has a row for each method, `identity`
lists the parts of an id, and `evaluation_protocol` gives the number of samples for a checkpoint.
"""

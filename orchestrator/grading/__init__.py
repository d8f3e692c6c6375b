"""Is an answer right? One grader for rewards and evaluation, in a process that can be killed.

Imports `errors` and, of `records`, the sign of life. Knows nothing of models, benchmarks or experiments.
"""

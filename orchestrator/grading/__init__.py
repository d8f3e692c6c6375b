"""Is an answer right? One grader for rewards and evaluation, in a process that can be killed.

Imports `errors` and, of `records`, the sign of life. Knows nothing of models, benchmarks or experiments.

`grader` is what others use. It takes the answer out of a generation (`boxes`) and hands it with the `gold` to a worker
(`process`, `worker`), where `judge` decides by rules on its `spelling`, `measures`, `structure`, `words`, `sets` of
reals and `algebra`. The cases that the rules exist for are in tests/grading/verdicts.yaml.
"""

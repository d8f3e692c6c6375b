"""Decides whether an answer is right: one grader for rewards and evaluation.

Imports `errors` and `liveness`. Knows nothing of models, benchmarks or experiments.

Other rooms use `grader`. It takes the answer out of a generation (`boxes`) and hands it with the
`gold` to a worker (`process`, `worker`), where `judge` decides by rules on its `spelling`,
`measures`, `structure`, `words`, `sets` of reals and `algebra`. A benchmark may name another judge
(`judges`). The cases behind the rules are in tests/grading/verdicts.yaml.
"""

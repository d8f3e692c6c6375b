"""Decides whether an answer is right: one grader for rewards and evaluation.

Imports `errors` and `liveness`. Knows nothing of models, benchmarks or experiments.

Other rooms use `grader`. It takes the answer out of a generation (`notation`) and hands it with the
`gold` to a `worker` process, where `judge` decides by rules on its `notation`, its `meanings` and
`algebra`. A benchmark may name another judge (`gold`). The cases behind the rules are in
tests/grading/verdicts.yaml.
"""

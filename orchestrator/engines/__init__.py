"""The engines that sample, score and train.

Imports `rollouts`, `policy`, `config`, `records`, `liveness`. `memory` computes the sizes of models
and `budget` their GPU memory, without torch. Each engine has its own folder; all of them use
`common`.
"""

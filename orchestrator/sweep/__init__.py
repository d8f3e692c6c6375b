"""Missing units over a laptop or a cluster: Tune, processes that die or freeze, and what must be there before.

Imports `trial`, `models`, `selection`. With `workers.actors` the only place where ray is imported.

After a kill: a dead process is replaced by Tune (`tuner`); its unit goes on from its last commit (`training_process`,
`records.writer`), its slice from the start (`evaluator_process`, `records.claims`). A frozen process is ended by
`watchdog`; `failures` says which errors are worth another attempt; when the driver dies, `guard` ends its private
cluster; when the cluster dies, `vital` ends the driver and its processes. `nodes` gives work to those nodes that meet
the `requirements`.
"""

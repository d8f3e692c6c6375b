"""The roles of a trial (rollout, teacher, learner), in one process or as Ray actors.

`members` has the roles as plain classes around the engines of their process, and `roles` the
handles by which a trial calls them. `inline` keeps them in the trial's process; `colocated` and
`split` put the same classes into actors of the trial's placement group (`actors`), with the same
bytes as a result. Calls of rollout and teacher are pure and may be repeated; a lost learner is
rebuilt from the last checkpoint.

Also holds an evaluator's `graded_sampling`, and the `canary` by which it knows a checkpoint's
weights. Only `actors` imports ray. A role knows its models, and nothing of the training loop.
"""

"""On-policy distillation sweeps: from an experiment file to a table that one would sign.

Rooms by floors, the lowest first. A room imports from lower floors and from within itself;
`tests/test_layout.py` reads this table.

    errors, rules, cores, sheet, start_up
    user_code, pair
    config
    liveness, policy
    grading, records, rollouts
    data, engines
    models
    experiment
    selection
    workers
    planning
    monitor, trial
    tracking, sweep
    checks
    commands
    view
    cli

`cli` is the command, `config` every key with default and limits, `pair` those of models, `rules`
the types of keys, `errors` the one user error, `rollouts` the nouns that flow from role to role,
`sheet` a table and how it is written, `user_code` the graders and trackers that an experiment
names. Each room's `__init__` says what the room is for.
"""

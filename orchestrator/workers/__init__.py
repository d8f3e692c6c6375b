"""The roles of a trial (rollout, teacher, learner, evaluator), in one process or as Ray actors.

Imports `engines`, `data`, `records`. Only `actors` imports ray. A role knows its models and nothing of the loop.
"""

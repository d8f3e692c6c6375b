"""The roles of a trial (rollout, teacher, learner), in one process or as Ray actors; and what an evaluator holds.

Imports `engines`, `data`, `records`. Only `actors` imports ray. A role knows its models and nothing of the loop.
"""

"""The roles of a trial (rollout, teacher, learner), in one process or as Ray actors.

Also holds an evaluator's `graded_sampling`. Only `actors` imports ray. A role knows its models, and
nothing of the training loop.
"""

"""Trackers show projections of the records, in W&B or TensorBoard: nothing is read back from them.

Imports `selection` and `analysis.facts`. Only `wandb_tracker` and `dashboard` import wandb, and only
`tensorboard` imports TensorBoard. `tracker` says what a tracker is, and lists those that ship.
"""

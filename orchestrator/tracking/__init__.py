"""W&B as a projection of the records: nothing is read back from it.

Imports `selection` and `monitor`. Only `upload` and `dashboard` import wandb.
"""

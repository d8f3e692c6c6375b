"""W&B as a projection of the records: the program reads nothing back from it.

Imports `selection` and `monitor`. Only `upload` and `dashboard` import wandb.
"""

"""Checks of a machine with GPUs before a sweep: small pieces of the real work, each in a process of its own.

Imports the engines, `models`, `workers` and what is below, and nothing of a sweep. `runner` starts the processes and
knows of no check; `catalog` lists the checks; `bench` is what they are made on. Only the processes of the checks load
torch.
"""

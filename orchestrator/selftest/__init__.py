"""Checks a machine with GPUs before a sweep, by small pieces of its work in their own processes.

Imports the engines, `models`, `workers`, `planning` and the rooms below, and nothing of a sweep.
`runner` starts the processes and is independent of the checks; `catalog` lists the checks; `bench`
describes their setup and models. Only the processes of the checks load torch.
"""

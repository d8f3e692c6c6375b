"""Scoring and training on verl's FSDP2 engine, over one or several ranks of one machine.

A worker opens `engine`. `library` is the one file that knows verl, and is tied to one version of
it. verl does not sample, and is imported only for experiments that ask for it: the default install
lacks it. Losses and scores come from `engines.common`.

FSDP2 shards teacher and student over as many ranks as their role has GPUs, or else whole CPU cores.
One rank lives in the worker's process and the others are its children, which end with it; a lost
rank ends the attempt. A learner's state is a file of rows for each rank, which any number of ranks
reads back.
"""

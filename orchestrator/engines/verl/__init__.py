"""Scoring and training on verl's FSDP2 engine, over one or several ranks of one machine.

A worker opens `engine`. `library` is the one file that knows verl, and is tied to one version of
it. verl does not sample, and is imported only for experiments that ask for it: the default install
lacks it. Losses and scores come from `engines.common`.
"""

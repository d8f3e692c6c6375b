"""Scoring and training on verl's FSDP2 engine, over one or several ranks of one machine.

`engine` is what a worker opens; `library` is the one file that knows verl, and is tied to one version of it. Nothing
here samples, and nothing outside imports it before an experiment asks for this engine: verl is not part of the default
installation. Losses, scores and files are those of `engines.torch`.
"""

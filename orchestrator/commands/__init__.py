"""The commands of `trb`, a file each with `add(parser)` and `run(options)`; `cli` lists them.

`arguments` has what they share. Imports everything below, and `analysis`. The full-screen view is
the command that has a room of its own.
"""

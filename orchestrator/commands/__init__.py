"""The larger subcommands, one file each, and what they show on a terminal.

Imports everything below, and `analysis`.
"""

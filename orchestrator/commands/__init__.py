"""The larger subcommands, a file each, and their output; `parser` lists all that can be typed.

Imports everything below, and `analysis`. What is not here (table, figures, report, dashboard)
`orchestrator.cli` calls where it lives.
"""

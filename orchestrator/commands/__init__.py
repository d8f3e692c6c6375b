"""The larger subcommands, one file each, and what they show on a terminal; `parser` lists what can
be typed.

Imports everything below, and `analysis`. What is not here (table, figures, report, dashboard)
`orchestrator.cli` calls where it lives.
"""

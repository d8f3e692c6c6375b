"""From run directories to what people read: table, figures, report. Nothing here trains, and
nothing imports torch.

Rooms by floors, the lowest first; `tests/test_layout.py` reads this table.

    numbers, labels
    facts
    table
    frames, figures
    report, results

Of `orchestrator` they import `config`, `errors`, `data`, `experiment`, `records`, `selection`,
`monitor` and `sheet`; only `orchestrator.commands`, `orchestrator.view`, `orchestrator.tracking`
and `orchestrator.cli` import them. `labels` and `numbers` hold names and numbers as they are
printed, `results` writes the results folder.
"""

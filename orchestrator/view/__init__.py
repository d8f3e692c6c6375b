"""`trb view`: a full-screen view of a sweep in a terminal.

It reads run directories and changes none: `reading` reads them off the screen's thread, `app` shows
a tab for each pane, and `panes` has what these share. Each pane stands in one file with its rows.
Scores are those of `analysis.table`, the rows of units those of `commands.unit_rows`. Nothing but
this room imports textual.
"""

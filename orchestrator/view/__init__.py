"""`trb view`: a full-screen view of a sweep in a terminal.

It reads run directories and changes none. Numbers and widgets are apart: `leaderboard`, `units`,
`processes`, `curves`, `responses` and `rollout_tokens` turn run directories into rows without
knowing a screen; `reading` reads them off the screen's thread; `app` with its panes shows them, and
`reading_pane` says when a pane reads files of its own. Scores are those of `analysis.table`, states
those of `monitor.status`. Nothing but this room imports textual.
"""

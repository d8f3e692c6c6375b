"""One HTML page with the table, figures, rollouts, cost and provenance of an experiment.

`trb report` calls `page.write_report`, which writes report.html; the other files are its sections.
"""

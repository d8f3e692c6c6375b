"""One HTML page with the table, figures, rollouts, cost and provenance of an experiment."""

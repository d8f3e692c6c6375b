"""Selected checkpoints, their intervals, and the verdict on the methods; no text of a table."""

"""Selected checkpoints, their intervals, and what may be said of the methods; numbers, no text of a
table.
"""

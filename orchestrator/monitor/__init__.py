"""How far a sweep is: the state and phase of every unit, the processes at work, and the time
left by the measured pace.

Imports `planning` and `selection`; reads run directories and changes none.
"""

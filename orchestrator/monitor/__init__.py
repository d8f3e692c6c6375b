"""How far a sweep is: the state and phase of every unit, and the time left by its measured pace.

Imports `planning` and `selection`; reads run directories and changes none.
"""

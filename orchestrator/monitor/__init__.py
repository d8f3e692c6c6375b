"""How far a sweep is: the state and phase of every unit, and the time left by what was measured.

Imports `planning` and `selection`; reads run directories and changes none.
"""

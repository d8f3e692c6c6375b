"""Processes: who lives, who guards whom, and who ends whom.

Imports `errors` alone, and knows nothing of run directories beside `.locks/`, its own folder in a
runs folder. It imports neither torch nor ray: `sweep` says what a cluster is.
"""

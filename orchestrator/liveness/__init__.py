"""Processes: who is alive, who guards whom, and who ends whom.

`children`: a process ends its children, and none outlives it. `lease`, `claims`, `drivers`: one
process has a unit, a slice or a sweep. `pulse`: a process shows that it works. `frozen_trials`: the
driver ends processes that do not. `driver_death`: a process beside the driver ends the cluster of a
driver that is gone. `head_node`: the processes of a sweep end with their cluster's head. `scratch`:
folders of dead processes are removed. `processes` holds what the kernel knows of a process.

Imports `errors` alone. Of a runs folder it knows its own `.locks/`, and nothing of run directories.
"""

"""Processes: who is alive, who guards whom, and who ends whom.

`children`: a process ends its children, and none outlives it. `leases`: one process has a unit, a
slice or a sweep. `heartbeat`: a process shows that it works, and the driver ends those that do not.
`deaths`: a process beside the driver ends the cluster of a driver that is gone, and the processes
of a sweep end with their cluster's head. `processes` holds what the kernel knows of a process, and
the scratch folders of this machine.

Imports `errors` alone. Of a runs folder it knows its own `.locks/`, and nothing of run directories.
"""

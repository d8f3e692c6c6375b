"""The run directory, which is the only truth, and everything that knows its layout.

Imports `errors` and `liveness`. All reads and writes of a unit's directory go through this room; no
other room spells a path inside it. `rundir` lists its files and reads them, `writer` writes them
and says what a kill leaves. `slices` cuts an evaluation into parts, whose files `slice_files`
reads. `snapshot` reads a directory at one moment, with a `cache` of what its files held before.
`columns` lists what a training step logs and what is clocked; `statistics` are taken over logged
rows.
"""

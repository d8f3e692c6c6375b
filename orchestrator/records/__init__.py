"""The run directory, which is the only truth, and everything that knows its layout.

Imports `errors` and `liveness`. All reads and writes of a unit's directory go through this room.
`rundir` lists the files of a directory and reads them; `writer` writes them and says what a kill
leaves. `slices` cuts an evaluation into parts; `slice_files` and `texts` read the files of a part.
`snapshot` reads a directory at one moment, with a `cache` of values that it computed before.
`columns` lists the values that a training step logs and the work that is clocked, `clock` reads the
clocks, and `statistics` works on logged rows.
"""

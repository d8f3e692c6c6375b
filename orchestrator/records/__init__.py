"""The run directory, which is the only truth, and everything that knows its layout.

Imports `errors` and `liveness`. All reads and writes of a unit's directory go through this room.
`rundir` lists the files of a directory and reads them; `writer` writes them and says what a kill
leaves. `slices` has the parts of an evaluation, their files and the texts beside them. `snapshot`
reads a directory at one moment, with a cache of values that it computed before. `log` lists every
value that a training step logs and all work that is clocked, and `clock` reads the clocks.
"""

"""The cost of a sweep before it runs: units, memory, GPU-hours by phase, and the clock.

`costs` has the seconds of a step and an evaluation from `rates` and `lengths`, `work` counts the
steps and samples of units, and `plan` sums. `seconds` puts what runs measured in the place of rates,
and `calibrated` what `trb calibrate` did. `progress` says what is done, and `view` prints all.

Imports `experiment`, `engines`, `selection` and `records`. Runs nothing, and loads no model.
"""

"""Checks a machine and an experiment before a sweep, and times its work on a card.

`check` says what a check is and makes it, here or in a process of its own; `catalog` lists all of
them. `preflight` and `experiment` hold what a submit checks before it begins, `machine` and
`experiment` the checks of `trb doctor`, `machine` and `engines` those of `trb doctor --gpu`, and
`timing` the pieces that `trb calibrate` clocks. `bench` is the pair that the last three work on, and
`measures` has their made-up work and clocks. A submit loads torch only where it has to measure a
prompt.
"""

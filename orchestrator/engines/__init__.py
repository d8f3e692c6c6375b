"""What samples, scores and trains.

Imports `rollouts`, `policy`, `config`, `records`. `memory` counts what fits on a device, without torch; each engine
has a folder of its own.
"""

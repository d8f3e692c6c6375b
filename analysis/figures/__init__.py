"""The figures of an experiment, a file for each: it reads its numbers, draws and captions them.

`catalog` lists the figures, `picture` joins a figure with its caption, and `output` writes files.
`panels` and `style` hold everything that the figures draw alike. `curves` reads the numbers of
several figures, and `early_rollouts` those of `tradeoff`.
"""

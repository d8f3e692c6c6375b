"""One file for each figure: it reads its numbers, draws them and says how to read the picture.

`catalog` lists the figures. `panels` and `style` hold everything that they draw alike; `curves` and
`early_rollouts` read the numbers of several of them.
"""

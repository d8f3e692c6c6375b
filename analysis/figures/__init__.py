"""The figures of an experiment, a file for each family: numbers, drawing and captions.

`catalog` lists the figures, and `picture` joins a figure with its caption and writes its files.
`panels` holds everything that the figures draw alike; the numbers come from `analysis.facts`.
"""

"""Problems: training prompts and benchmarks, told apart by their declared content.

Imports `grading` and what is below. Only `prompts` and `training_set` need a tokenizer.

`benchmarks` lists the benchmarks; `declared` says which files an experiment wants, `sources` where they come from, and
`fetching` gets them. `training_set` makes the prompts of a training from generated sums (`arithmetic`), files
(`problems`) or `openthoughts`, whose golds are a `majority`.
"""

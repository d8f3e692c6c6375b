"""Problems: training prompts and benchmarks, identified by their declared content.

Imports `grading` and rooms below it. Only `prompts` and `training_set` need a tokenizer.

`benchmarks` lists the benchmarks. `declared` names the files that an experiment needs, `sources`
their origins, and `fetching` gets them. `training_set` makes training prompts from generated sums
(`arithmetic`), files (`problems`) or `openthoughts`, whose golds are a `majority`.
"""

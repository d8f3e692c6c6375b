"""Problems: training prompts and benchmarks, identified by their declared content.

Imports `grading` and rooms below it. Only `prompts` and `training_set` need a tokenizer.

`benchmarks` lists the benchmarks, and the files that an experiment needs. `sources` gets these from
their origins. `training_set` makes training prompts from generated problems (`arithmetic`,
`word_problems`), rows (`problems`) or `openthoughts`, whose golds are majorities. `files` reads rows
and keeps results in the user's cache.
"""

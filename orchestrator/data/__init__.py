"""Problems: training prompts and benchmarks, told apart by their declared content.

Imports `grading` and what is below. Only `prompts` and `training_set` need a tokenizer.
"""

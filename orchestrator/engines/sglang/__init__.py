"""SGLang as a sampler: the same law as the torch engine's, at the speed of a serving engine.

Imported only where an experiment asks for it: the default install has no SGLang. What is private to SGLang stands in
one file, with the version that it was read in.
"""

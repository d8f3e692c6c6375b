"""SGLang as a sampler: the same law as the torch engine's, at the speed of a serving engine.

Imported only for experiments that ask for it: the default install has no SGLang. Code on SGLang's
private parts is in `private`, with the version in which they were read, and in `blending_worker`.
"""

"""SGLang as a sampler: the same law as the torch engine's, at the speed of a serving engine.

Imported only for experiments that ask for it: the default install has no SGLang. Code on SGLang's
private parts is in `private`, with the version in which they were read, and in `blending_worker`.

Over several GPUs SGLang starts a process for each, with a part of every layer; they meet on
loopback and draw from the same logits with the same uniforms. It has run on CPUs over gloo, never
on GPUs. CUDA graphs and overlapped scheduling are off in blended steps, and an engine of the
student alone takes over once a method's blended steps are over.
"""

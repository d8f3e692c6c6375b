"""The engine on plain torch: keyed sampling, exact blending, one device.

Keyed sampling gives the same bytes after any restart. The engines `verl` and `sglang` use its
losses, scores and verdicts.
"""

"""The engine on plain torch: keyed sampling (the same bytes after any restart), exact blending, one device.

Imported by `workers`, `trial` and `models` only.
"""

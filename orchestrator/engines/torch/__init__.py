"""The engine on plain torch: keyed sampling, exact blending, one device.

Keyed sampling gives the same bytes after any restart. Code for several engines lies in
`engines.common`.
"""

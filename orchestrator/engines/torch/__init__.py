"""The engine on plain torch: keyed sampling, exact blending, one device.

Keyed sampling gives the same bytes after any restart. What it shares with the other engines lies in
`engines.common`.
"""

"""The paper's mathematics: pure functions on tensors, and behaviors as plain data.

Imports nothing of ours. `spec` says what samples and what is minimised, without torch; `laws` how log p and log q make
log μ; `draft_length` how many tokens the student drafts.
"""

"""The paper's mathematics: pure functions on tensors, and behaviors as plain data.

Imports no other room. `spec` describes behaviors and objectives, without torch. `laws` computes
log μ from log p and log q. `draft_length` chooses the number of drafted tokens.
"""

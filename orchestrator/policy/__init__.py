"""The paper's mathematics: pure functions on tensors, and behaviors as plain data.

Imports no other room. `spec` describes behaviors and objectives, without torch, and chooses the
number of drafted tokens. `laws` computes log μ from log p and log q, and solves the trust region.
`speculation` samples from a law by drafts, with the keyed uniforms of `randomness`. `vocabulary`
merges the stop ids of two models into one event. `objective` has the losses and the tokens at which
they count.
"""

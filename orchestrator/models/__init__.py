"""Provides models and tokenizers: from a hub, from a folder, or made by a recipe.

Imports `experiment`, `data`, and from `engines` what making a model needs. Opens no checkpoints of
runs.
"""

"""Provides models and tokenizers: from a hub, from a folder, or made by a recipe.

Imports `experiment`, `data`, and the parts of `engines` for making models. Opens no checkpoints of
runs.
"""

"""Where models and tokenizers come from: a hub, a folder, or made here by a recipe.

Imports `experiment`, `data` and the engines that it makes models with. No checkpoint of a run is opened here.
"""

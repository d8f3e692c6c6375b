"""Every role at full size on a pretended GPU, against what `engines.budget` grants it: `make
rehearse-gpu`.
"""

"""One file for each figure: it draws numbers that it is given. `catalog` says which there are and
reads the numbers.
"""

"""The results table: its model, its forms (terminal, Markdown, LaTeX, CSV, JSON), and what stands
under it.
"""

"""The results table: its model, its forms (terminal, Markdown, LaTeX, CSV, JSON), its captions."""

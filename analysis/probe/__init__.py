"""What the continuation probe found: gains with intervals, and how they are printed."""

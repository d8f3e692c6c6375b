"""Results of the continuation probe: gains with intervals, and their printed form."""

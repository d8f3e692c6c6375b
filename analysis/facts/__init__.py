"""Facts: everything that is said about a study, computed once and rendered by all surfaces."""

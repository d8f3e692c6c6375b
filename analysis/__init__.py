"""Reads finished and running experiments and turns them into tables and figures."""

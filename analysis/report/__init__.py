"""An experiment on one HTML page, from its run directories alone."""

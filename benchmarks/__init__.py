"""What metricgrad claims about itself, measured: uses only the public names of the library."""

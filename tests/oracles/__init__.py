"""Independent judges for tests; none shares code with what it judges."""

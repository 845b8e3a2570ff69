"""Measure gives a captured Program its costs, and says what a step holds besides."""

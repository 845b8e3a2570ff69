"""Planners turn a Program and a budget into a Plan. None needs torch, and none imports the referee."""

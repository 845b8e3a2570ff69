"""Lowtide trains any PyTorch model inside a number of bytes."""

__version__ = "0.1.0"

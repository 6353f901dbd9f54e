"""Romijnders, Approximating the parameter posterior."""

"""Immer et al. 2021 and Daxberger et al. 2021, on Laplace's method."""

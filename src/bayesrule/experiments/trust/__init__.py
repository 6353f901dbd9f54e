"""Ovadia et al. 2019 and Hein et al. 2019: predictions far from home."""

"""Wolinski, Charpiat and Ollivier, Interpreting a penalty as the influence of a Bayesian prior."""

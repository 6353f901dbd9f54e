"""Huix, Majewski, Durmus, Moulines and Korba, Variational inference of overparameterized Bayesian neural networks."""

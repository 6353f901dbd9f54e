"""Khan, Deep learning with Bayesian principles; Khan and Rue, The Bayesian learning rule."""

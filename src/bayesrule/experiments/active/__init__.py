"""Gal et al. 2017, Kirsch et al. 2019, Bickford Smith et al. 2023 and Khan: active learning."""

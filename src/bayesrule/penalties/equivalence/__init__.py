"""A penalty in training and the prior it stands for, each from the other (Wolinski, Charpiat and Ollivier)."""

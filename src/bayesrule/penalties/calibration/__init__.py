"""How strong a prior or penalty should be, from the scale at which a network starts."""

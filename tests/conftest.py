"""Settings for all tests: property tests repeat exactly, and two workers share two cores."""

import torch
from hypothesis import settings

settings.register_profile("exact", deadline=None, derandomize=True)
settings.load_profile("exact")
torch.set_num_threads(1)

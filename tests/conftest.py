"""Settings for all tests: property tests repeat exactly, and two workers share two cores."""

import os

# Before torch and numpy are loaded: workers and processes that tests start take it over, and none of them spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)
settings.load_profile(os.environ.get("BAYESRULE_TEST_PROFILE", "quick"))
torch.set_num_threads(1)

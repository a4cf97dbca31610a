"""What all tests share."""

import os

import torch

torch.set_num_threads(1)  # workers do not fight over cores
# graphs that an earlier version left in the cache know nothing of a change in our operators
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

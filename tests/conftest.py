"""What all tests share."""

import os
import tempfile

import torch

torch.set_num_threads(1)  # workers do not fight over cores
# a cache of their own: graphs of an earlier version know nothing of a change in our operators
_CACHE = tempfile.TemporaryDirectory(prefix="luong-inductor-", ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE.name

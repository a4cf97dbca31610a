"""What all tests share: one thread, so that workers do not fight over cores."""

import torch

torch.set_num_threads(1)

"""Recurrent encoder-decoder models with Luong attention. They work on tensors of symbols.

The public names are listed in `__init__.pyi`; PyTorch is imported when one that needs it is used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

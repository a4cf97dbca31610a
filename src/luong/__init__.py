"""Luong attention for PyTorch. The public names are listed in `__init__.pyi`; see the README."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__version__ = "0.1.0"

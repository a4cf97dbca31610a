"""`python -m luong.toolkit` is the command `luong`."""

import sys

from luong.toolkit.cli import main

sys.exit(main())

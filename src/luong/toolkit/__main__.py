"""`python -m luong.toolkit` is the command `luong`."""

import sys

from luong.toolkit.command.cli import main

sys.exit(main())

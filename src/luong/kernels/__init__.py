"""How the operators are computed: a file or a package for each operator."""

import os

PROCESS = os.getpid()  # noted before any fork: see threads.py

"""The computation of the operators: a file or a package for each."""

import os

PROCESS = os.getpid()  # registered before any fork: see threads.py

"""The command `luong`. Each verb is a module whose function `run` imports the heavy modules."""

"""The command `luong`. Each verb is a module with a function `run`, which imports what is heavy."""

"""The command `luong`, and what is behind it."""

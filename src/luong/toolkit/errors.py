"""The error that people see: one line, no traceback."""


class ToolkitError(Exception):
    """Something that the person at the keyboard can put right; the message says how."""


class UsageError(ToolkitError):
    """A wrong command line or setting: exit status 2."""

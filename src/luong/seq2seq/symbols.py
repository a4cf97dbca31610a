"""The symbols that every vocabulary begins with."""

PAD, START, END, UNKNOWN = range(4)

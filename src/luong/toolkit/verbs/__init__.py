"""One verb, one module with a function `run`. What is heavy is imported where it is used."""

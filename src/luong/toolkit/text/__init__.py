"""Text: corpora, vocabularies, batches of symbols, and a report on a corpus."""

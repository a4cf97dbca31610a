"""A trained model at work: translations, alignments, scores, their measures and pictures."""

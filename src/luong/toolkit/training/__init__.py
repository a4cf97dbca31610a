"""Training: the loop, what an update changes, checkpoints, and the folder of a run."""

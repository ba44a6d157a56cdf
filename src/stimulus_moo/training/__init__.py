"""Parts of the training loop behind `fit`: run, history, checkpoints, progress, callbacks."""

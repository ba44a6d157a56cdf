"""Parts of the training loop of ``fit``: run, history, checkpoints, progress, TensorBoard."""

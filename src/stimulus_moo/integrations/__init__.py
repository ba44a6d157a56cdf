"""Other libraries: TorchJD's weightings by name, and trainers that make their steps with a MultiGradient."""

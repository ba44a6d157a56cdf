"""The lab: data sets, models, the paper's experiments, figures and the command line, on public names only."""

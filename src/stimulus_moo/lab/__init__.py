"""Data sets, models, experiments, studies, reports and the command line. Uses only public names of the library."""

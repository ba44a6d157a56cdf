"""The demo: auto against tuned methods on two problems at equal passes, a Pareto front, and one page about both."""

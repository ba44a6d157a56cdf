"""Synthetic problems with known answers: smoothness, Pareto sets and fronts in closed form."""

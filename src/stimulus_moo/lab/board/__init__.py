"""The scoreboard: real problems, the field's metrics, and every rival at equal budgets."""

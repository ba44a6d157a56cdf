"""Private parts behind MultiGradient: evaluation, differentiation, rows, transactions, replay and interrupts."""

"""Pure maths of ELDR: NumPy and SciPy only; time and randomness are arguments."""

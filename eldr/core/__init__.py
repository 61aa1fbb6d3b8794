"""Pure maths of ELDR.

It needs NumPy and SciPy alone; time and randomness are arguments.
"""

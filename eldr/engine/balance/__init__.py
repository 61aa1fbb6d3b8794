"""One replica of every expert in each step, chosen by what is activated; off unless ``ELDR_BALANCE`` asks for it."""

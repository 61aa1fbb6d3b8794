"""Build the image of ELDR from Debian's packages and locked wheels, without a container engine."""

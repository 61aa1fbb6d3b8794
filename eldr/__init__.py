"""ELDR: expert-locality-aware routing for mixture-of-experts serving.

Importing this package must stay cheap: no third-party module is imported here.
"""

__version__ = "0.1.0"

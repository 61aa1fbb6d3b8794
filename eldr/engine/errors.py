"""Why an engine ends."""


class UnsupportedEngineError(ValueError):
    """The configuration of an engine would give wrong counts, or cannot do what its environment asks for."""


class HiddenRoutingError(RuntimeError):
    """Which experts the model uses cannot be seen, or not counted."""


class RanksDisagreeError(RuntimeError):
    """Ranks of one engine would compute different things; it must end."""

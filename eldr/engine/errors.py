"""Why an engine ends."""


class UnsupportedEngineError(ValueError):
    """An engine lacks what the plug-in needs, or cannot do what its settings ask for."""


class HiddenRoutingError(RuntimeError):
    """Which experts the model uses cannot be seen, or not counted."""


class RanksDisagreeError(RuntimeError):
    """Ranks of one engine would compute different things; it must end. All ranks raise it in the same step."""


class RankAloneError(RuntimeError):
    """A rank cannot follow what the others have chosen, and cannot report it: its process must end, and so the engine."""

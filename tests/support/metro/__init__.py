"""Which replica of an expert computes a step, so that no rank activates many experts.

An expert-parallel engine waits for the rank that loads most experts. Replicas that share *tokens* evenly make every rank load more of them;
METRO [1]_ gives each active expert to one rank so that the fullest loads as few as possible. It never helps to split an expert's tokens
over replicas, so a choice is one rank per active expert: unit jobs on machines of which each job knows some, least largest load.

Shapes: E logical experts, R ranks, P physical experts (E and the redundant ones), of which each rank holds P / R in a row.

References
----------
.. [1] METRO, arXiv 2512.09277.
"""

from tests.support.metro.choice import Choice, exact, greedy
from tests.support.metro.placement import Placement

__all__ = ["Choice", "Placement", "exact", "greedy"]

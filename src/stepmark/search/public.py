"""What `stepmark.search` is: a function, and the place of its methods."""

from __future__ import annotations

from typing import final

from stepmark.batching import Score as _Score
from stepmark.batching import Write as _Write
from stepmark.batching import Written as _Written
from stepmark.search.adaptive import Adaptive as _Adaptive
from stepmark.search.beam import BeamSearch as _BeamSearch
from stepmark.search.best_of_n import BestOfN as _BestOfN
from stepmark.search.best_of_n import Greedy as _Greedy
from stepmark.search.best_of_n import Majority as _Majority
from stepmark.search.best_of_n import WeightedVote as _WeightedVote
from stepmark.search.choosing import choose as _choose
from stepmark.search.dvts import DiverseTrees as _DiverseTrees
from stepmark.search.growing import Tree as _Tree
from stepmark.search.mcts import MCTS as _MCTS
from stepmark.search.nodes import ranked as _ranked
from stepmark.search.problems import search as _search
from stepmark.search.rebase import Rebase as _Rebase
from stepmark.search.rejection import EarlyRejection as _EarlyRejection
from stepmark.search.searching import Choosing as _Choosing
from stepmark.search.searching import Expanding as _Expanding
from stepmark.search.searching import Found as _Found
from stepmark.search.searching import Searching as _Searching
from stepmark.search.searching import Steps as _Steps

__all__ = ["SearchAPI"]


@final
class SearchAPI:
    """`stepmark.search(problems, policy, prm, …)`, and the methods that it takes."""

    __call__ = staticmethod(_search)
    Greedy = _Greedy
    BestOfN = _BestOfN
    Majority = _Majority
    WeightedVote = _WeightedVote
    BeamSearch = _BeamSearch
    DiverseTrees = _DiverseTrees
    Rebase = _Rebase
    MCTS = _MCTS
    Adaptive = _Adaptive
    EarlyRejection = _EarlyRejection
    Steps = _Steps
    Found = _Found
    # What a search of your own is made of.
    Searching = _Searching
    Choosing = _Choosing
    Expanding = _Expanding
    Tree = _Tree
    choose = staticmethod(_choose)
    ranked = staticmethod(_ranked)
    Write = _Write
    Written = _Written
    Score = _Score

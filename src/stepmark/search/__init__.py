"""Search for solutions with a policy and a PRM: `stepmark.search(problems, policy, prm)`; the methods are here by name."""

from stepmark.catalog import callable_package

callable_package(__name__, "stepmark.search.run:search", "stepmark.search.run:SearchAPI")

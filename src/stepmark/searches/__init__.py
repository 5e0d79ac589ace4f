"""Searches for solutions with a policy and a PRM, and what one of your own is made of; `stepmark.search` runs them."""

from stepmark.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)

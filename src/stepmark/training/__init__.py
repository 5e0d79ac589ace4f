"""Train PRMs: settings and objectives, and what one of your own is derived from; `stepmark.train` runs them."""

from stepmark.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)

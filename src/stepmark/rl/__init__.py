"""Train a policy with process rewards: settings, credit methods, and what one of your own is made of; `stepmark.train_policy` runs them.

`rl.credit` is pure functions from rewards to advantages, each with its paper; the trainer and the monitor are built on them.
"""

from stepmark.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)

r"""stepmark: process reward models that grade reasoning step by step.

    >>> import stepmark
    >>> [step.text for step in stepmark.split("2 + 3 = 5\n5 * 2 = 10")]
    ['2 + 3 = 5', '5 * 2 = 10']
    >>> stepmark.aggregate([0.9, 0.5], "product")
    0.45

`load_prm`, `load_policy` and `load_verifier` load models by name; `grade`, `sample`, `label` and `search` run over files or rows and write
the files that the commands of the same names write. Verbs are functions here; the methods that they take are in packages:
`stepmark.labels.EveryStep`, `stepmark.searches.BeamSearch`, `stepmark.training.HardLabels`, `stepmark.rl.GRPO`,
`stepmark.evaluation.ProcessBench`. Importing this package imports no heavy library.
"""

from stepmark.lazy_names import lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_names(__name__)
__all__ += ["__version__"]

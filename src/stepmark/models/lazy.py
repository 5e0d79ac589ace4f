"""A model by its name, loaded when it is needed: what can be refused before is refused before."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final

from stepmark.backends.cluster import Cluster
from stepmark.errors import IdleSettingWarning, UsageError

T = TypeVar("T")
Bits: TypeAlias = Literal["int8", "int4"]
"""What the weights of a model's layers are kept in, where they are quantized."""

UNSAID: Mapping[str, object] = {
    **dict.fromkeys(("family", "reference", "model", "tokenizer", "samples", "token_budget", "quantize")),
    "seed": 0,
    "neutral": "positive",
    "truncate": False,
    "dtype": "auto",
    "device": "auto",
}
"""The settings of `load_prm` that mean nothing for some PRMs, with their defaults: a value equal to the default counts as not given."""


LOADING = threading.RLock()
"""Held while a model is loaded."""


@final
class Lazy(Generic[T]):
    """A model that is not loaded yet.

    Args:
        function: loads it: `load_prm`, `load_policy`.
        name: its first argument, as the caller wrote it.
        arguments: its other arguments.
        check: refuses arguments that cannot work for this model, without loading it.
        identity: called as `function`, gives the `identity` that the model will have, without reading a checkpoint's weights into memory.
    """

    def __init__(
        self,
        function: Callable[..., T],
        name: str,
        arguments: Mapping[str, Any],
        *,
        check: Callable[[str, Mapping[str, Any]], None],
        identity: Callable[..., str],
    ) -> None:
        self.name, self.arguments = name, dict(arguments)
        self._function, self._check, self._identity = function, check, identity

    @property
    def identity(self) -> str:
        """What `load().identity` will be; raises as `load`."""
        return self._identity(self.name, **self.arguments)

    def check(self) -> None:
        """Refuse (`UsageError`) what `load` would refuse, as far as the name tells."""
        self._check(self.name, self.arguments)

    def load(self) -> T:
        """The model; loaded anew at each call, and no two at once: transformers' imports are not safe for threads."""
        with LOADING:
            return self._function(self.name, **self.arguments)

    def with_arguments(self, **arguments: Any) -> Lazy[T]:
        """The same model, loaded with some other arguments."""
        merged = {**self.arguments, **arguments}
        return Lazy(self._function, self.name, merged, check=self._check, identity=self._identity)

    def __repr__(self) -> str:
        return f"Lazy({self.name!r})"


def check_models(cluster: Cluster | None, *models: object) -> None:
    """Refuse (`UsageError`) models that cannot be loaded as they were named, or that a cluster's workers cannot load; nothing is loaded.

    Args:
        cluster: that they are loaded on; None for this process.
        models: as they were given; None where there is none.
    """
    for model in models:
        if isinstance(model, Lazy):
            model.check()
        elif model is not None and cluster is not None and cluster.ray is not None:
            raise UsageError(
                f"`ray`: expected models as names, which every worker loads, found a {type(model).__name__} of this process"
            )
    if cluster is not None:
        devices = [str(model.arguments.get("device", "auto")) for model in models if isinstance(model, Lazy)]
        cluster.check(next((device for device in devices if device.startswith("cuda")), "auto"))


def arguments_of(model: object) -> Mapping[str, Any]:
    """What a model is loaded with; nothing for one that is loaded already, or for none."""
    return model.arguments if isinstance(model, Lazy) else {}


def is_server(name: str) -> bool:
    """Whether a PRM's or policy's name is the address of a server."""
    return name.startswith(("http://", "https://"))


def check_device(device: str, *, several: bool = False) -> None:
    """Refuse (`UsageError`) a device that is none, before a model is loaded.

    Args:
        device: as torch names it; "auto".
        several: whether "all", for all GPUs, counts as a device.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) and not (several and device == "all"):
        more = ", or all" if several else ""
        raise UsageError(f"`device` {device}: expected auto, cpu, cuda or cuda:NUMBER{more}")


def note_idle(given: Mapping[str, object], idle: Mapping[str, str]) -> None:
    """Warn (`IdleSettingWarning`) of settings that have no effect.

    Args:
        given: name to value; defaults (`UNSAID`) count as not given.
        idle: what means nothing here, and why.
    """
    for name, why in idle.items():
        value = given.get(name)
        if value is not None and value != UNSAID.get(name):
            warnings.warn(f"`{name}` has no effect: {why}", IdleSettingWarning, stacklevel=1)

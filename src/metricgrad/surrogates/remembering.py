"""Losses that remember: tensors that are part of the state, but no buffers.

Past scores or running means change with every batch, also in shape. `DistributedDataParallel` would
overwrite buffers with those of its first process, and fail where their shapes differ; a compiled
step would restore the buffers that it was traced with. So they are plain attributes, which
`state_dict`, `load_state_dict` and `.to(device)` are told about here.
"""

from typing import Any, Self

from metricgrad.surrogates.base import Surrogate


class Remembering(Surrogate):
    """A surrogate with tensors that it keeps from batch to batch, the attributes in `kept`."""

    remembers = True
    kept: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_store)
        self.register_load_state_dict_pre_hook(_load)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Moves or casts what is kept along with parameters and buffers."""
        super()._apply(fn, recurse)
        for name in self.kept:
            setattr(self, name, fn(getattr(self, name)))
        return self


def _store(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook that adds what is kept to a module's state."""
    for name in module.kept:
        state[prefix + name] = getattr(module, name)


def _load(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """A hook that takes it from a state, which is a copy of the caller's, in any shape."""
    missing: list[str] = rest[2]
    for name in module.kept:
        if prefix + name not in state:
            missing.append(prefix + name)
            continue
        own = getattr(module, name)
        setattr(module, name, state.pop(prefix + name).detach().to(own.device).clone())

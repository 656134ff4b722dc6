"""The kinds of models that an estimator may be asked for, by name: `model="boosted,linear"`."""

from typing import Any, Literal, get_args

ModelKind = Literal["boosted", "linear", "network"]


def model_kinds(model: Any) -> tuple[ModelKind, ...]:
    """The kinds of models that `model=` names, the one first that the others have to beat.

    Example:
        >>> model_kinds("boosted,linear")
        ('boosted', 'linear')
        >>> model_kinds("auto")
        ('boosted', 'linear', 'network')
    """
    known = get_args(ModelKind)
    if model == "auto":
        return known
    named = [each.strip() for each in model.split(",")] if isinstance(model, str) else [model]
    if len(set(named)) < len(named) or not set(named) <= set(known):
        raise ValueError(
            f"model must be linear, network, boosted, several of them such as 'boosted,linear', or "
            f"auto for all; got {model!r}"
        )
    return tuple(each for name in named for each in known if each == name)

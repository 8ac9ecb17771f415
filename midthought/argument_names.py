"""Arguments and members under the names of other packages: decorators that translate them, or name the replacement."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from midthought.errors import near_names

P = ParamSpec("P")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)
_ANY_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def also_named(
    removed: Mapping[str, str] | None = None, /, **names: str | tuple[str, ...]
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Returns a decorator: the function takes the keyword argument `theirs` as `ours`, for every `theirs=ours`.

    `ours` may be several names, which all get the value unless they are given themselves. A `theirs` of None counts as not
    given. `removed` maps names without a counterpart (several, separated by spaces) to the remedy. Raises TypeError for such a
    name, if an argument is given under two names, and, with the valid names, for an unknown name or too many positions.

    >>> @also_named({"verbose": "use logging"}, colour="color")
    ... def paint(color: str = "white") -> str:
    ...     return color
    >>> paint(colour="red")
    'red'
    >>> paint(verbose=True)
    Traceback (most recent call last):
    TypeError: paint takes no verbose; use logging
    >>> paint(colr="red")
    Traceback (most recent call last):
    TypeError: paint takes no colr. Did you mean 'color'? Known: color.
    """
    ours = {name: (target,) if isinstance(target, str) else target for name, target in names.items()}
    remedies = _each_name(removed or {})

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def translated(*args: P.args, **kwargs: P.kwargs) -> Result:
            if not kwargs.keys().isdisjoint(accepted):
                kwargs = _translated(called, kwargs, ours, remedies)  # type: ignore[assignment]
            if len(args) > most or not (takes_any or kwargs.keys() <= parameters.keys()):
                _refuse(called, parameters, args, kwargs)
            return function(*args, **kwargs)

        called = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
        parameters = inspect.signature(function).parameters
        kinds = [each.kind for each in parameters.values()]
        most = (
            len(kinds) if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in _ANY_POSITIONAL for kind in kinds)
        )
        accepted = {*ours, *remedies}
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        return translated

    return decorate


def constructor_named(
    removed: Mapping[str, str] | None = None, /, **names: str | tuple[str, ...]
) -> Callable[[Class], Class]:
    """Returns a class decorator: `also_named` for the constructor of a dataclass."""

    def decorate(kind: Class) -> Class:
        kind.__init__ = also_named(removed, **names)(kind.__init__)  # type: ignore[misc]
        return kind

    return decorate


def members_elsewhere(remedies: Mapping[str, str]) -> Callable[[Class], Class]:
    """Returns a class decorator: reading one of these names (several, separated by spaces, have one remedy) raises AttributeError
    with the remedy, unless an object or a subclass has the member.

    >>> @members_elsewhere({"colour hue": "read paint.color"})
    ... class Paint:
    ...     color = "red"
    >>> Paint().hue
    Traceback (most recent call last):
    AttributeError: Paint has no hue; read paint.color
    """
    table = _each_name(remedies)

    def decorate(kind: Class) -> Class:
        def missing(self: Any, name: str) -> Any:
            if name in table:
                raise AttributeError(f"{type(self).__name__} has no {name}; {table[name]}", name=name, obj=self)
            return object.__getattribute__(self, name)  # raises the error that led here

        kind.__getattr__ = missing  # type: ignore[attr-defined]
        return kind

    return decorate


def public_name(name: str) -> Any:
    """Returns a public name of `midthought`: `__getattr__` of the packages that were modules of the setup package."""
    public = importlib.import_module("midthought")
    if name in public.__all__:
        return getattr(public, name)
    raise AttributeError(f"no public name {name!r}; docs/from-the-originals.md lists the names of the setup package")


def _each_name(remedies: Mapping[str, str]) -> dict[str, str]:
    return {name: remedy for names, remedy in remedies.items() for name in names.split()}


def _refuse(
    function: str, parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Raises TypeError for the first unknown name, or else for too many positions."""
    names = [name for name in parameters if name != "self"]
    unknown = [name for name in given if name not in parameters]
    if unknown:
        raise TypeError(f"{function} takes no {unknown[0]}. {near_names(unknown[0], names)}")
    shown = [each.replace(annotation=each.empty) for name, each in parameters.items() if name != "self"]
    raise TypeError(
        f"{function} got {len(args) - ('self' in parameters)} arguments by position; write {function.rpartition('.')[2]}"
        f"{inspect.Signature(shown)}{', what follows the * by name' if '*' in str(inspect.Signature(shown)) else ''}"
    )


def _translated(
    function: str, given: Mapping[str, Any], ours: Mapping[str, tuple[str, ...]], removed: Mapping[str, str]
) -> dict[str, Any]:
    kept = {name: value for name, value in given.items() if name not in ours}
    several: dict[str, Any] = {}
    for name in given:
        if name in removed:
            raise TypeError(f"{function} takes no {name}; {removed[name]}")
        targets = ours.get(name, ())
        if given[name] is None or not targets:
            continue
        if len(targets) > 1:
            several |= dict.fromkeys(targets, given[name])
        elif targets[0] in kept:
            raise TypeError(
                f"{function}: {name} is another name of {targets[0]}, and both were given; give one of them"
            )
        else:
            kept[targets[0]] = given[name]
    return {**several, **kept}

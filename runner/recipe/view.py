"""A recipe as the rules see it: attributes like the pydantic models', without pydantic."""

from __future__ import annotations

from typing import Any

from runner.recipe.node import Path


class Broken(Exception):
    """A rule looked at a value that has a problem of its own: the rule has nothing to say."""


class _Bad:
    """Stands for a value that had a problem. Any use but handing it on raises `Broken`."""

    def _use(self, *_: Any) -> Any:
        raise Broken

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = __hash__ = __format__ = (
        __str__
    ) = _use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __fspath__ = _use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __neg__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = _use


BAD: Any = _Bad()


class View:
    """A section as the rules see it: the fields of the pydantic class of the same name, defaults filled in."""

    def __init__(self, name: str, values: dict[str, Any], given: frozenset[str]) -> None:
        self.__dict__.update(values)
        self.section_name = name
        self.given = given

    def __repr__(self) -> str:
        return f"View({self.section_name})"


class Traced:
    """A view that notes in `seen` the path of every setting that is looked at."""

    def __init__(self, view: View, path: Path, seen: dict[Path, None]) -> None:
        self._view = view
        self._path = path
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._view, name)
        if name in ("section_name", "given"):
            return value
        return self._wrap(value, (*self._path, name))

    def _wrap(self, value: Any, path: Path) -> Any:
        self._seen[path] = None
        if isinstance(value, View):
            return Traced(value, path, self._seen)
        if isinstance(value, tuple):
            return tuple(self._wrap(item, (*path, index)) for index, item in enumerate(value))
        return value

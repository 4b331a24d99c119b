"""Settings for the time in which a function is traced."""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def traced_with(function: F, variable: contextvars.ContextVar[T], value: T) -> F:
    """Returns a function that is traced while a context variable has a value.

    The returned function can be jitted now and traced later.
    """

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        token = variable.set(value)
        try:
            return function(*args, **kwargs)
        finally:
            variable.reset(token)

    return traced  # pyright: ignore[reportReturnType]

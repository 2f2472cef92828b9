"""Typed errors. Every message names the argument or file, the value given, and what is allowed."""

from __future__ import annotations


class FastpagedError(Exception):
    """The base of every error fastpaged raises on purpose."""


class InvalidRequestError(FastpagedError, ValueError):
    """A bad request, sampling parameter or argument: the caller's to mend. Nothing was changed."""


class ModelNotFoundError(FastpagedError, ValueError):
    """There is no model at the given path."""


class ModelFormatError(FastpagedError, ValueError):
    """A model file is truncated, of the wrong size, or of a kind that is not supported."""


class UnsupportedFeatureError(FastpagedError, AttributeError):
    """Something that is known from elsewhere and not there."""


class RequestLostError(FastpagedError, RuntimeError):
    """A request ended, but its outputs went to somebody else."""


class EngineClosedError(FastpagedError, RuntimeError):
    """The engine was used after close()."""


class QueueOverflowError(FastpagedError, RuntimeError):
    """So many requests wait already that one more is not taken. Nothing was changed; the same request may be tried
    again a moment later."""


class EngineBusyError(FastpagedError, RuntimeError):
    """Two threads used at the same time what one thread may use."""


class StepFailedError(FastpagedError, RuntimeError):
    """A step of the engine failed, and with it the requests in flight; the engine goes on. `__cause__` says why."""


class EngineDeadError(FastpagedError, RuntimeError):
    """The engine cannot go on: every request fails with this. `__cause__` says why."""

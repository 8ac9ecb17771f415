"""Messages of failed calls, for the model that reads them."""

from __future__ import annotations

_MAX_CHARS = 100


def error_text(error: BaseException) -> str:
    """Returns an exception's message for the model; with its class if the message is empty or, for a KeyError, only a key."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if isinstance(error, KeyError) else message or type(error).__name__


def short_error_text(error: Exception) -> str:
    """Returns `error_text` in one line of at most 100 characters."""
    try:
        return shortened(error_text(error)) or type(error).__name__
    except Exception:  # raised by its own __str__
        return type(error).__name__


def shortened(text: str) -> str:
    """Returns a text in one line of at most 100 characters."""
    return encodable(" ".join(text[: 100 * _MAX_CHARS].split())[:_MAX_CHARS])


def encodable(text: str) -> str:
    """Replaces lone surrogates, which files and tokenizers cannot represent, with question marks."""
    return text.encode(errors="replace").decode()

"""What may go wrong with an attempt: is it worth another one, after how long, and in which words."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError
from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

#: Backoff after attempt n: a random time up to 0.5 * 2^(n - 1) seconds, at most this many.
MAX_BACKOFF = 20.0
#: The longest `Retry-After` (seconds) that is believed. Whoever means more says so again by then.
MAX_RETRY_AFTER = 60.0


class NoReplyError(Exception):
    """What an attempt brought is no chat completion; the message says what it was."""


def worth_retrying(error: BaseException) -> bool:
    """May the same question have an answer from the same server a little later?"""
    if isinstance(error, APIStatusError):
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return isinstance(error, APIConnectionError | NoReplyError)


def backoff(state: RetryCallState) -> float:
    """Jittered exponential backoff (seconds)."""
    return wait_random_exponential(multiplier=0.5, max=MAX_BACKOFF)(state)


def retry_after(error: BaseException) -> float | None:
    """How long (seconds) the server asks to be left alone, within reason; None: it does not say."""
    if not isinstance(error, APIStatusError):
        return None
    said = error.response.headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            until = parsedate_to_datetime(said)
            # A date without a zone is in UTC, as HTTP's are.
            until = until if until.tzinfo else until.replace(tzinfo=UTC)
            seconds = (until - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_RETRY_AFTER)


def told(error: BaseException) -> str:
    """The error on one line, without the key, should the server repeat it."""
    if not isinstance(error, APIError):
        return str(error)
    if isinstance(error, APITimeoutError):
        return "timed out"
    key = error.request.headers.get("authorization", "").removeprefix("Bearer ")
    message = " ".join(error.message.split())
    message = (message.replace(key, "...") if key else message)[:200]
    if isinstance(error, APIStatusError):
        return f"HTTP {error.status_code}: {message}"
    if isinstance(error, APIConnectionError):
        return f"no connection ({type(error.__cause__ or error).__name__})"
    return f"{type(error).__name__}: {message}"

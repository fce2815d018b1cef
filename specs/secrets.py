"""Secrets do not stand in a file: a spec names the environment variable that holds one.

What is refused: a user or a password in an address, a value under a key such as `api_key` or
`authorization` at any depth, and a value that looks like a key of a known service. No message repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from .faults import Fault, FaultsError

if TYPE_CHECKING:
    from .errors import Steps

#: Last words of a key whose value is a secret, ...
_SECRET = frozenset(
    "apikey auth authorization bearer credential credentials passphrase passwd password secret".split()
)
#: ... and the words before `key` and `token` that make it one. (`eos_token` and `cache_key` are none.)
_OF_KEY = frozenset("access account api auth master private secret service subscription".split())
_OF_TOKEN = frozenset("access api auth bearer hf hub private refresh secret session".split())
#: Names of a query's arguments that are secrets although a key of that name need not be one.
_OF_QUERY = frozenset(("key", "sig", "signature"))
#: How keys of well-known services begin, and what follows `Bearer`.
_LOOKS = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|xox[abp]-[A-Za-z0-9-]{20,})"
    r"|(?i:bearer)\s+(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}"
)
#: `//user:password@`, and the same where the scheme was forgotten.
_USER = re.compile(r"(?<=//)[^/\s@]*@|(?<![^\s\"'\[,])(?!mailto:)[^/\s@:\"']+:[^/\s@]+@")
#: An argument of an address, and a setting such as `API_KEY=...` (no pattern like `token=[0-9]+`).
_ARGUMENT = re.compile(r"(?<=[?&])([A-Za-z][A-Za-z0-9_.-]*)=[^\s&#\"']+")
_SETTING = re.compile(r"(?<![?&A-Za-z0-9_.-])([A-Za-z][A-Za-z0-9_.-]*)=[A-Za-z0-9_.~+/-]{8,}")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_ENV_NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
_ADDRESS = r"^https?://[^\s]+$"


def is_secret_name(key: str) -> bool:
    """Is a key of this name (`api_key`, `X-Api-Key`, `apiKey`, `Authorization`) given a secret?"""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SECRET:
        return True
    return (last == "key" and before in _OF_KEY) or (last == "token" and before in {"", *_OF_TOKEN})


def masked(text: str) -> str:
    """`text` with an ellipsis for each secret that shows by its form."""
    if "@" in text:
        text = _USER.sub("…@", text)
    if "=" in text:
        text = _ARGUMENT.sub(lambda m: f"{m[1]}=…" if _is_secret_argument(m[1]) else m[0], text)
        text = _SETTING.sub(lambda m: f"{m[1]}=…" if is_secret_name(m[1]) else m[0], text)
    return _LOOKS.sub("…", text)


def _is_secret_argument(name: str) -> bool:
    return name.lower() in _OF_QUERY or is_secret_name(name)


def _no_secrets(value: dict[str, Any]) -> dict[str, Any]:
    if found := tuple(_secrets_in(value, ())):
        raise FaultsError(found)
    return value


def _secrets_in(value: Any, path: Steps) -> Iterator[Fault]:
    if isinstance(value, dict):
        for key, below in value.items():
            # A switch is none: `hf-token: true` says where the token is to be looked for.
            if is_secret_name(key) and not (below is None or below == "" or isinstance(below, bool)):
                yield _secret(f"{key} is a secret", *path, key)
            else:
                yield from _secrets_in(below, (*path, key))
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield from _secrets_in(item, (*path, n))
    elif isinstance(value, str) and masked(value) != value:
        yield _secret("this value holds a secret", *path)


def _secret(what: str, *path: str | int) -> Fault:
    told = f"{what}, and no secret stands in a file; allowed: `api_key_env` of the role, the name of an"
    return Fault(f"{told} environment variable that holds it", (path,), shown=False)


def _is_address(value: str) -> str:
    if masked(value) != value:
        raise FaultsError([_secret("the address holds a user, a password or a key")])
    if not re.fullmatch(_ADDRESS, value):
        raise ValueError("must be an address such as http://localhost:8000/v1")
    return value


def _is_env_name(value: str) -> str:
    if not re.fullmatch(_ENV_NAME, value) or _HEX.fullmatch(value) or masked(value) != value:
        told = "must be the name of an environment variable (letters, digits, underscores), not its value"
        raise FaultsError([Fault(told, ((),), shown=False)])
    return value


#: An address that anyone may read.
Address = Annotated[
    str, AfterValidator(_is_address), WithJsonSchema({"type": "string", "pattern": _ADDRESS})
]
#: The name of an environment variable.
EnvName = Annotated[
    str, AfterValidator(_is_env_name), WithJsonSchema({"type": "string", "pattern": _ENV_NAME})
]
#: A mapping of the user's own keys, on any of which a secret may be tried.
Free = Annotated[dict[str, Any], AfterValidator(_no_secrets)]

"""Secrets do not stand in a file: a spec names the environment variable that holds one.

What is refused: a user or a password in an address, a value under a key such as `api_key` or
`authorization` at any depth, and a value that looks like a key of a known service. No message repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from .faults import Fault, FaultsError

if TYPE_CHECKING:
    from .errors import Steps

#: Last words of a key whose value is a secret whatever it is, ...
_PASSWORD = frozenset(("passphrase", "passwd", "password", "pwd"))
#: ... or is one unless it is a number or `none`, ...
_SECRET = frozenset(
    "apikey auth authorization bearer cookie cookies credential credentials jwt secret".split()
)
#: ... those that are one alone, ...
_ALONE = frozenset(("pass", "token"))
#: ... and the words before `key` and `token` that make it one. (`eos_token` and `cache_key` are none.)
_OF_KEY = frozenset(
    "access account anthropic api auth encryption hf master openai private secret service signing ssh "
    "subscription wandb".split()
)
_OF_TOKEN = frozenset("access api auth bearer hf hub private refresh secret session".split())
#: Names of a query's arguments that are secrets although a key of that name need not be one.
_OF_QUERY = frozenset(("key", "sig"))
#: How keys of well-known services begin, and what follows `Bearer`.
_LOOKS = re.compile(
    r"(?<![A-Za-z0-9-])sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}"
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|xox[abp]-[A-Za-z0-9-]{20,})"
    r"|(?i:bearer)\s+(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}"
)
#: `//user:password@`, and the same in an address whose scheme was forgotten.
_USER = re.compile(r"(?<=//)[^/\s@]*@")
_BARE_USER = re.compile(r"(?<![^\s\"'\[,])(?!mailto:)[^/\s@:\"']+:[^/\s@]+@")
#: An argument of an address, and a setting such as `API_KEY=...` (no pattern like `token=[0-9]+`).
_ARGUMENT = re.compile(r"(?<=[?&])([A-Za-z][A-Za-z0-9_.-]*)=[^\s&#\"']+")
_SETTING = re.compile(r"(?<![?&A-Za-z0-9_.-])([A-Za-z][A-Za-z0-9_.-]*)=[A-Za-z0-9_.~+/-]{8,}")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_ENV_NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
_ADDRESS = r"^https?://[^\s]+$"
_OF_ROLE = "`api_key_env` of the role, the name of an environment variable that holds it"


def is_secret_name(key: str) -> bool:
    """Is a key of this name (`api_key`, `X-Api-Key`, `apiKey`, `Authorization`) given a secret?"""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _PASSWORD or last in _SECRET:
        return True
    if not before:
        return last in _ALONE
    return (last == "key" and before in _OF_KEY) or (last == "token" and before in _OF_TOKEN)


def masked(text: str) -> str:
    """`text` with an ellipsis for each secret that shows by its form."""
    return _masked(_BARE_USER.sub("…@", text) if "@" in text else text)


def _masked(text: str) -> str:
    """The same of a text that need not be an address: `team:ops@corp` is no user."""
    if "@" in text:
        text = _USER.sub("…@", text)
    if "=" in text:
        text = _ARGUMENT.sub(lambda m: f"{m[1]}=…" if _is_secret_argument(m[1]) else m[0], text)
        text = _SETTING.sub(lambda m: f"{m[1]}=…" if is_secret_name(m[1]) else m[0], text)
    return _LOOKS.sub("…", text)


def _is_secret_argument(name: str) -> bool:
    return name.lower() in _OF_QUERY or is_secret_name(name)


def free_of_secrets(way_out: str) -> AfterValidator:
    """Refuses a mapping of the user's own keys, or a text, that holds a secret; `way_out` is allowed."""

    def no_secrets(value: Any) -> Any:
        if found := tuple(_secrets_in(value, (), way_out)):
            raise FaultsError(found)
        return value

    return AfterValidator(no_secrets)


def _secrets_in(value: Any, path: Steps, way_out: str) -> Iterator[Fault]:
    if isinstance(value, dict):
        for key, below in value.items():
            if is_secret_name(key) and not _is_no_secret(key, below):
                yield _secret(f"{key} is a secret", way_out, *path, key)
            else:
                yield from _secrets_in(below, (*path, key), way_out)
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield from _secrets_in(item, (*path, n), way_out)
    elif isinstance(value, str) and _masked(value) != value:
        yield _secret("this value holds a secret", way_out, *path)


def _is_no_secret(key: str, value: Any) -> bool:
    """Nothing, a switch (`hf-token: true`: where the token is), a number or `none` of a key that is none
    of a password's."""
    if value is None or value == "" or isinstance(value, bool):
        return True
    is_plain = isinstance(value, int | float) or (isinstance(value, str) and value.lower() == "none")
    return is_plain and not key.lower().endswith(tuple(_PASSWORD))


def _secret(what: str, way_out: str, *path: str | int) -> Fault:
    return Fault(f"{what}, and no secret stands in a file; allowed: {way_out}", (path,), shown=False)


def public_address(way_out: str) -> AfterValidator:
    """Refuses what is no address, or one that holds a secret; `way_out` is allowed instead."""

    def is_address(value: str) -> str:
        if masked(value) != value:
            raise FaultsError([_secret("the address holds a user, a password or a key", way_out)])
        if not re.fullmatch(_ADDRESS, value):
            raise ValueError("must be an address such as http://localhost:8000/v1")
        return value

    return AfterValidator(is_address)


def _is_env_name(value: str) -> str:
    if not re.fullmatch(_ENV_NAME, value) or _HEX.fullmatch(value) or masked(value) != value:
        told = "must be the name of an environment variable (letters, digits, underscores), not its value"
        raise FaultsError([Fault(told, ((),), shown=False)])
    return value


_AS_ADDRESS = WithJsonSchema({"type": "string", "pattern": _ADDRESS})
#: An address that anyone may read, of a role, ...
Address = Annotated[str, public_address(_OF_ROLE), _AS_ADDRESS]
#: ... and of a Ray cluster's job server.
ClusterAddress = Annotated[
    str, public_address("the environment variable RAY_JOB_HEADERS, which Ray reads"), _AS_ADDRESS
]
#: The name of an environment variable.
EnvName = Annotated[
    str, AfterValidator(_is_env_name), WithJsonSchema({"type": "string", "pattern": _ENV_NAME})
]
#: A model's name, and no key that was put in its place.
ModelName = Annotated[str, Field(min_length=1), free_of_secrets(_OF_ROLE)]
#: A mapping of the user's own keys, on any of which a secret may be tried: of a role's requests, ...
Free = Annotated[dict[str, Any], free_of_secrets(_OF_ROLE)]
#: ... of flags of a vLLM server, ...
ServerFlags = Annotated[
    dict[str, Any],
    free_of_secrets(
        "an environment variable that vLLM reads (HF_TOKEN; a role's server gets what `api_key_env` of "
        "the role names as its VLLM_API_KEY)"
    ),
]
#: ... of OpenRLHF's flags, and of a check's arguments.
TrainerFlags = Annotated[
    dict[str, Any],
    free_of_secrets("an environment variable that OpenRLHF reads (WANDB_API_KEY for Weights & Biases)"),
]
CheckArgs = Annotated[dict[str, Any], free_of_secrets("an environment variable that the check reads")]

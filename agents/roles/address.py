"""Is an address one of this machine's own?"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Can only this machine reach what listens on `host`?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(url: str) -> bool:
    """Is it asked on this machine? No proxy that the environment names has to do with it then."""
    return is_loopback(urlsplit(url).hostname or "")

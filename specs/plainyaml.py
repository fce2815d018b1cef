"""The data of a YAML file with nothing wrong in it, without places: large task files are read so.

The language is that of `yamlnodes`; a test holds the two against each other on thousands of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from . import yamlnodes
from .yamlnodes import core_scalar, scalar_fault

#: Characters of a scalar that is kept with its meaning.
MAX_KNOWN = 20


class UnusualError(ValueError):
    """Something in a text is wrong or needs a closer look: `yamlnodes.read` tells what."""


def read_plain(text: str) -> Any:
    """The data of a text in which all is well: what `yamlnodes.read` gives as nodes, in half the time.

    Raises `UnusualError` where that has a problem to tell, and at anchors.
    """
    try:
        return _read_plain(text)
    except (yaml.YAMLError, ValueError, OverflowError):
        raise UnusualError from None


def _read_plain(text: str) -> Any:
    if yamlnodes.forbidden(text):
        raise UnusualError
    event: Callable[[], Any] = yamlnodes.LOADER(text).get_event
    known: dict[str, Any] = {}  # what short scalars without quotes mean: keys, for instance, occur often
    scalar_event, mapping_start, mapping_end, sequence_start, sequence_end = (
        *(yaml.ScalarEvent, yaml.MappingStartEvent, yaml.MappingEndEvent),
        *(yaml.SequenceStartEvent, yaml.SequenceEndEvent),
    )

    def scalar(event: Any) -> Any:
        if event.anchor is not None or event.tag is not None:
            raise UnusualError
        written = event.value
        if not event.style and written in known:
            return known[written]
        found = written if event.style else core_scalar(written)
        if not (type(found) is str and found.isascii()) and scalar_fault(found):
            raise UnusualError
        if not event.style and len(written) <= MAX_KNOWN:
            known[written] = found
        return found

    def value(start: Any, depth: int) -> Any:
        kind = type(start)
        if kind is scalar_event:
            return scalar(start)
        if kind not in (mapping_start, sequence_start) or depth >= yamlnodes.MAX_DEPTH:
            raise UnusualError
        if start.anchor is not None or start.tag is not None:
            raise UnusualError
        if kind is sequence_start:
            items = []
            while type(item := event()) is not sequence_end:
                items.append(value(item, depth + 1))
            return items
        entries: dict[str, Any] = {}
        while type(key := event()) is not mapping_end:
            if type(key) is not scalar_event:
                raise UnusualError
            name = scalar(key)
            if type(name) is not str or name == "<<" or name in entries:
                raise UnusualError
            below = event()
            entries[name] = scalar(below) if type(below) is scalar_event else value(below, depth + 1)
        return entries

    event()  # the stream starts
    event()  # so does the document; of an empty file the stream ends, and no value follows
    root = value(event(), 0)
    event()  # the document ends
    if type(event()) is not yaml.StreamEndEvent:
        raise UnusualError
    return root

"""Strict YAML: text to nodes that know where they stand, and plain data to text.

The syntax is PyYAML's; what a plain scalar means is YAML 1.2's core schema, less numbers with
leading zeros: ``1e-3`` is a number, ``yes``, ``012``, ``1_000`` and dates are strings. Rejected are
duplicate keys, keys that are not strings, tags, merge keys (``<<``), numbers that are not finite
or outside 64 bits, recursive aliases, and several documents in one file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import yaml

from .errors import COMMAND_LINE, Entry, Node, Problem, SpecError, Steps, describe, shortened

#: libyaml's parser where PyYAML was built with it: about ten times faster.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

#: Nothing in a spec is deeper than 10; the rest of the code may recurse over nodes.
MAX_DEPTH = 100
#: Aliases may repeat this many nodes in total ("billion laughs" files stop here).
MAX_ALIASED = 300_000

_INT = r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_NOT_FINITE = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_IS_INT = re.compile(_INT)
_IS_FLOAT = re.compile(f"{_FLOAT}|{_NOT_FINITE}")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
#: Characters YAML allows in no place, and the byte order mark anywhere but at the start.
_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_ALLOWED_ASCII = b"\t\n\r" + bytes(range(0x20, 0x7F))
_SURROGATE = re.compile("[\ud800-\udfff]")


def forbidden(text: str) -> re.Match[str] | None:
    """The first character that YAML does not allow."""
    if text.isascii() and not text.encode().translate(None, delete=_ALLOWED_ASCII):
        return None  # in a fifth of the time
    return _FORBIDDEN.search(text)


def read(text: str, file: str) -> tuple[Node, list[Problem]]:
    """The one document in `text`, and what is wrong with it but leaves the rest readable.

    Raises `SpecError` where nothing sensible can be read after the problem (syntax, several
    documents, an empty file, too deep, too many aliases).
    """
    if found := forbidden(text):
        before = text[: found.start()].split("\n")
        message = f"character U+{ord(found[0]):04X} is not allowed in YAML"
        raise SpecError([Problem(file, len(before), len(before[-1]) + 1, "", message)])
    reader = _Reader(text, file)
    try:
        return reader.document(), reader.problems
    except yaml.MarkedYAMLError as error:
        problem = _syntax(error, text, file)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The last two: the pure Python parser on escapes such as "\U00110000".
        problem = Problem(file, 1, 1, "", f"not valid YAML: {error}")
    raise SpecError([*reader.problems, problem])


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    message = f"not valid YAML: {error.problem or error.context}"
    if error.problem and error.context:
        message += f" ({error.context})"
    if "".join(text.split("\n")[line : line + 1])[column : column + 1] == "\t":
        message += "; a tab cannot indent: use spaces"
    elif "mapping values" in message or "expected <block end>" in message:
        message += "; quote text that holds ': ', or check the indentation of this line and the one above"
    return Problem(file, line + 1, column + 1, "", message)


class _Anchored(NamedTuple):
    node: Node | None  # None while it is being read
    size: int = 0
    height: int = 0


class _Reader:
    """Builds nodes from parser events; PyYAML's own composer keeps neither limits nor key marks."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        # The parser itself: yaml.parse() around it takes as long again.
        self.event: Callable[[], Any] = LOADER(text).get_event
        self.problems: list[Problem] = []
        self.path: list[str | int] = []
        self.anchors: dict[str, _Anchored] = {}
        self.size = 0  # nodes so far, those repeated by aliases included
        self.aliased = 0
        self.deepest = 0

    def document(self) -> Node:
        self.event()  # the stream starts
        if isinstance(self.event(), yaml.StreamEndEvent):
            raise SpecError([Problem(self.file, 1, 1, "", "the file is empty")])
        root = self.node(self.event(), 0)
        self.event()  # the document ends
        after = self.event()
        if not isinstance(after, yaml.StreamEndEvent):
            self.fatal(after, "a second document starts here; a file holds one")
        return root

    def fatal(self, event: Any, message: str) -> NoReturn:
        # Where the nesting is too deep, the whole path would fill the screen.
        problem = self.here(event).problem(tuple(self.path[:8]), message)
        raise SpecError([*self.problems, problem])

    def here(self, event: Any) -> Node:
        mark = event.start_mark
        return Node(self.file, mark.line + 1, mark.column + 1, None)

    def report(self, node: Node, message: str) -> None:
        node.bad = True
        self.problems.append(node.problem(tuple(self.path), message))

    def node(self, event: Any, depth: int) -> Node:
        # Half of what a large file takes goes by here: most nodes are scalars of the simplest sort.
        kind = type(event)
        if kind is yaml.AliasEvent:
            return self.alias(event, depth)
        self.size += 1
        if depth > self.deepest:
            self.deeper(event, depth)
        mark = event.start_mark
        node = Node(self.file, mark.line + 1, mark.column + 1, None)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.report(node, f"the tag {tag} is not supported: leave it out (and quote text)")
        if event.anchor is not None:
            self.anchored(node, event, depth)
        elif kind is yaml.ScalarEvent:
            self.scalar(node, event)
        else:
            self.collection(node, kind, depth)
        return node

    def deeper(self, event: Any, depth: int) -> None:
        self.deepest = depth
        if depth > MAX_DEPTH:
            self.fatal(event, f"nested more than {MAX_DEPTH} levels deep")

    def anchored(self, node: Node, event: Any, depth: int) -> None:
        size, deepest, self.deepest = self.size, self.deepest, depth
        self.anchors[event.anchor] = _Anchored(None)
        if type(event) is yaml.ScalarEvent:
            self.scalar(node, event)
        else:
            self.collection(node, type(event), depth)
        height = self.deepest - depth
        self.anchors[event.anchor] = _Anchored(node, self.size - size + 1, height)
        self.deepest = max(deepest, self.deepest)

    def alias(self, event: Any, depth: int) -> Node:
        anchored = self.anchors.get(event.anchor)
        if anchored is not None and anchored.node is not None:
            self.size += anchored.size
            self.aliased += anchored.size
            if depth + anchored.height > self.deepest:
                self.deeper(event, depth + anchored.height)
            if self.aliased > MAX_ALIASED:
                self.fatal(event, f"aliases repeat more than {MAX_ALIASED:,} values")
            return anchored.node
        node = self.here(event)
        name = event.anchor
        self.report(node, f"*{name} stands inside &{name}" if anchored else f"no anchor &{name}")
        return node

    def scalar(self, node: Node, event: Any) -> None:
        text, style = event.value, event.style
        if style:
            quote = "'" if style == "'" else '"'
            node.written = f"{quote}{text}{quote}"
            node.value = text
        else:
            node.written = text
            try:
                node.value = core_scalar(text)
            except ValueError:  # Python converts no more than 4300 digits
                node.value = 2**64
        if type(node.value) is str and text.isascii():
            return
        fault = scalar_fault(node.value)
        if fault and not node.bad:
            self.report(node, f"{shortened(node.written)} is not allowed: {fault}")

    def collection(self, node: Node, kind: type, depth: int) -> None:
        if kind is yaml.SequenceStartEvent:
            self.sequence(node, depth)
        else:
            self.mapping(node, depth)

    def sequence(self, node: Node, depth: int) -> None:
        items: list[Node] = []
        node.value = items
        while type(event := self.event()) is not yaml.SequenceEndEvent:
            self.path.append(len(items))
            items.append(self.node(event, depth + 1))
            self.path.pop()

    def mapping(self, node: Node, depth: int) -> None:
        entries: dict[str, Entry] = {}
        node.value = entries
        while type(event := self.event()) is not yaml.MappingEndEvent:
            key = self.node(event, depth + 1)
            name = key.value if isinstance(key.value, str) else key.written or "?"
            self.path.append(name)
            value = self.node(self.event(), depth + 1)
            self.path.pop()
            if name in entries or key.bad or key.value is not name or key.written == "<<":
                self.refuse(key, name, node, entries)
            else:
                entries[name] = Entry(key, value)

    def refuse(self, key: Node, name: str, node: Node, entries: dict[str, Entry]) -> None:
        if key.written == "<<":
            self.report(key, "merge keys (<<) are not supported: write the keys out")
        elif not isinstance(key.value, str) and not key.bad:
            hint = f'; quote it: "{key.written}"' if key.written else ""
            self.report(key, f"a key must be a string, not {describe(key)}{hint}")
        if key.bad:
            node.bad = True  # so that the key it should have been is not "missing"
            return
        first = entries[name].key
        message = f"duplicate key {name}, first at line {first.line}, column {first.column}"
        self.problems.append(key.problem((*self.path, name), message))


def core_scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means. Raises `ValueError` for a number of too many digits."""
    if text[:1].isalpha() and text[0] not in "tTfFnN":
        return text  # most scalars: no word of YAML's and no number starts like that
    return _no_plain_word(text)


@lru_cache(maxsize=4096)
def _no_plain_word(text: str) -> str | int | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    if _IS_INT.fullmatch(text):
        return int(text, 0)
    if _IS_FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def scalar_fault(value: object) -> str | None:
    """Why a scalar is allowed in no field, or None."""
    if isinstance(value, str):
        good = value.isascii() or not _SURROGATE.search(value)
        return None if good else "half of a surrogate pair is not text"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be a number of at most 64 bits"
    return None


def from_data(data: Any, problems: list[Problem], path: Steps = (), quoted: bool = False) -> Node:
    """Options of the command line as nodes; what no field allows goes to `problems`.

    Strings stand there without quotes; in JSON (`quoted`) they have them.
    """
    node = Node(COMMAND_LINE, 0, 0, data)
    if len(path) > MAX_DEPTH:
        node.value = None
        problems.append(node.problem(path[:3], f"nested more than {MAX_DEPTH} levels deep"))
    elif isinstance(data, dict):
        node.value = {
            str(key): Entry(
                Node(COMMAND_LINE, 0, 0, str(key)), from_data(value, problems, (*path, key), quoted)
            )
            for key, value in data.items()
        }
    elif isinstance(data, list | tuple):
        node.value = [from_data(item, problems, (*path, i), quoted) for i, item in enumerate(data)]
    else:
        as_given = isinstance(data, str) and not quoted
        node.written = data if as_given else json.dumps(data, default=str, ensure_ascii=False)
        if fault := scalar_fault(data):
            node.bad = True
            message = f"{shortened(node.written)} is not allowed: {fault}"
            problems.append(node.problem(path, message))
    return node


class _Dumper(DUMPER):  # type: ignore[misc]
    """Quotes every string that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for JSON: raises `ValueError` where a key occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shortened(twice)!r} occurs twice")
    return row


def _represent_str(dumper: _Dumper, text: str) -> Any:
    # Unescaped, these three are line breaks to a YAML 1.1 parser and would come back as others.
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)
# PyYAML's own resolvers are YAML 1.1's; a string that either version would convert gets quotes.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"(?:{_INT})$"), list("-+0123456789"))
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"(?:{_FLOAT}|{_NOT_FINITE})$"), list("-+.0123456789")
)


def dump_yaml(data: Any) -> str:
    """Plain data (dicts with string keys, lists, scalars) as YAML that `read` reads back the same.

    Raises `yaml.representer.RepresenterError` for anything else. Not finite numbers and integers
    over 64 bits can be written, but are rejected when read.
    """
    return str(
        yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=False,
            width=100,
        )
    )

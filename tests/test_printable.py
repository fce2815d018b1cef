"""Text of others on a line of the terminal."""

from __future__ import annotations

import pytest
from harnessrl.specs.printable import one_line
from harnessrl.trainer.progress import Display
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  two  spaces", "  two  spaces"),
        ("ends\n", "ends"),
        ("one\n\n   two\r\nthree", "one two three"),
        ("back\rover", "back⟨U+000D⟩over"),
        ("\x1b[31mred", "⟨U+001B⟩[31mred"),
        ("a\x85b\u2028c\x0bd", "a⟨U+0085⟩b⟨U+2028⟩c⟨U+000B⟩d"),
        ("\u202eevil", "⟨U+202E⟩evil"),
        ("a\tb 日本 👩\u200d🔬", "a\tb 日本 👩\u200d🔬"),
    ],
)
def test_one_line_shows_what_is_hidden_and_keeps_the_rest(text: str, line: str) -> None:
    assert one_line(text) == line


@given(st.text())
def test_it_is_one_line_that_can_be_written(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert one_line(line) == line
    line.encode()


def test_what_a_run_shows_is_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(3, Console(width=200))
    for tell in (display.tell, display.say, display.hold):
        tell("accepted\nstep 3/3\x1b[2J")
    assert capsys.readouterr().out == "  accepted step 3/3⟨U+001B⟩[2J\n" * 3

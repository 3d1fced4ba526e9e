"""docs/parsers.md is what the registry says, and its plugins work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.parsers.make_docs import page
from tests.unit.parsers.reading import read
from vllm_lite.parsers import registry

PAGE = Path(__file__).parents[3] / "docs" / "parsers.md"


def test_the_page_is_as_the_registry() -> None:
    advice = "run `python -m tests.unit.parsers.make_docs > docs/parsers.md`"
    assert page() == PAGE.read_text("utf-8"), advice


@pytest.mark.usefixtures("parser_names")
def test_the_plugins_of_the_page_work(tmp_path: Path) -> None:
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page(), re.DOTALL)):
        file = tmp_path / f"plugin_{number}.py"
        file.write_text(block)
        registry.load_plugin(str(file))
    text = '<why>R</why>C<call>{"name": "ping", "arguments": {}}</call>'
    message = read(text, tool_parser="mine", reasoning_parser="mine")
    assert (message.reasoning, message.content) == ("R", "C")
    assert [call.name for call in message.tool_calls] == ["ping"]
    text = 'Hi\n!ping a "b"\nBye\n!pong c'
    for cut in range(1, len(text)):
        message = read(text, [cut], tool_parser="lines")
        assert message.content == "HiBye\n!pong c", cut
        assert [call.arguments for call in message.tool_calls] == ['{"line": "a \\"b\\""}']

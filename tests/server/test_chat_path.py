"""benchmarks/chat_path.py: the modules between a chat request and the engine core's queue."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.server.fake_client import TEMPLATE
from tests.unit.engine.engines import async_engine
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.app import build_app

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "chat_path.py"
MOST_BEFORE_ENGINE = 9
MOST_MODULES = 14


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chat_path", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


async def test_plain_chat_passes_few_modules_before_the_queue() -> None:
    async with async_engine() as (engine, _):
        app = build_app(engine, ServerConfig(chat_template=TEMPLATE))
        modules = (await load_script().path_of_chat(app)).after_body
    assert modules[0] == "server.body"
    assert "engine.link.channel" in modules
    assert len(modules) <= MOST_MODULES, " ".join(modules)
    before_engine = modules[: modules.index("engine.front.async_llm")]
    assert len(before_engine) <= MOST_BEFORE_ENGINE, " ".join(before_engine)

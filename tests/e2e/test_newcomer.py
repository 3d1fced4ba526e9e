"""A newcomer's first minutes, in order: real processes, a real page in a real Chromium.

The clone takes this environment's .venv instead of filling one of its own, and models come from a
hub on the loopback; nothing else is short-cut. `SCREENSHOTS=docs/images` before the command keeps
what the page looked like.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.checkpoints import LLAMA_CONFIG
from tests.e2e.server_process import free_port
from tests.server.browsing import CHROMIUM, playwright
from tests.unit.cli.fake_hub import REPO, FakeHub, serving
from tests.unit.cli.test_models import safetensors
from vllm_lite.config.demo import fetch_demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ROW = {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions"}
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and a hub that has one model; what `run` leaves is stopped."""
    hub = FakeHub(
        {"config.json": json.dumps(LLAMA_CONFIG).encode(), "model.safetensors": safetensors()}
    )
    demo = fetch_demo()
    (tmp_path / "cache" / "demo").mkdir(parents=True)
    shutil.copy(demo, tmp_path / "cache" / "demo")
    with serving(hub):
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        try:
            yield tmp_path
        finally:
            vllm_lite("stop", "--all", "--force")


def vllm_lite(*words: str) -> str:
    """The command's output; it must succeed."""
    command = [sys.executable, "-m", "vllm_lite", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0 or words[0] == "stop", (words, done.stderr)
    return done.stdout


def until(found: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)
    return result


async def test_the_first_minutes(home: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("there is nothing to clone")
    clone = home / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
    for stamp in (".torch", ".installed"):
        (clone / ".venv" / stamp).touch()
    port, log = free_port(), home / "demo.log"
    with log.open("wb") as file:
        demo = subprocess.Popen(
            ["make", "demo", f"PORT={port}"],
            cwd=clone,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: "startup complete" in log.read_text() or demo.poll() is not None)
        text = log.read_text()
        printed = re.search(r"  (curl (?:.*\\\n)*.*)\n", text)
        assert printed, text
        answer = subprocess.run(["bash", "-c", printed[1]], capture_output=True, text=True)
        assert "Paris" in json.loads(answer.stdout)["choices"][0]["message"]["content"]
        assert "Paris" in vllm_lite(
            *("chat", "--url", f"http://127.0.0.1:{port}/v1", "--temperature", "0"),
            *("-q", "What is the capital of France?"),
        )
        if CHROMIUM is not None:
            await visit(f"http://127.0.0.1:{port}", Path(os.environ.get("SCREENSHOTS", home)))
        # Ctrl-C reaches whatever the terminal runs.
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(20)
        assert "Traceback" not in log.read_text()
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
        demo.wait()
    go_on(home)


def go_on(home: Path) -> None:
    """The commands that people know."""
    vllm_lite("pull", REPO)
    listed = vllm_lite("list")
    assert REPO in listed and "demo" in listed
    assert "LlamaForCausalLM" in vllm_lite("show", REPO)
    options = ("--", "--max-model-len", "1024", "--batch-storage-dir", str(home / "batches"))
    assert "Paris" in vllm_lite("run", "demo", QUESTION["messages"][0]["content"], *options)
    url = vllm_lite("ps").splitlines()[1].split()
    rows = home / "rows.jsonl"
    rows.write_text(json.dumps({**ROW, "body": {**QUESTION, "max_tokens": 16}}) + "\n")
    with OpenAI(base_url=next(one for one in url if "http" in one), api_key="x") as client:
        file = client.files.create(file=rows.open("rb"), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = until(
            lambda: (one := client.batches.retrieve(batch.id)).status == "completed" and one
        )
        assert "Paris" in client.files.content(batch.output_file_id).text
    assert "stopped demo" in vllm_lite("stop", "demo")
    vllm_lite("run-batch", "--model", "demo", "-i", str(rows), "-o", str(home / "answers.jsonl"))
    assert "Paris" in (home / "answers.jsonl").read_text()


async def visit(url: str, shots: Path) -> None:
    """Chat, call a tool, stop a reply, look at what the engine does."""
    complaints: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(
            viewport={"width": 1200, "height": 760}, color_scheme="light"
        )
        context.set_default_timeout(120_000)
        page = await context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: m.type == "error" and complaints.append(m.text))
        await page.goto(url)
        await page.wait_for_selector("#model option", state="attached")

        async def say(text: str) -> Any:
            await page.fill("#prompt", text)
            await page.press("#prompt", "Enter")

        async def reply() -> Any:
            await page.wait_for_selector("#send:has-text('Send')")
            return page.locator(".message.assistant").last

        await page.click("#tune")
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Tools (JSON list)").fill(
            json.dumps([{"type": "function", "function": WEATHER}])
        )
        await page.get_by_label("Tool calls").select_option("none")
        await say("What is the capital of France?")
        shown = await (await reply()).inner_text()
        assert "Paris" in shown and "tokens/s" in shown
        await page.get_by_label("System prompt").scroll_into_view_if_needed()
        await page.screenshot(path=shots / "page-chat.png")
        await page.get_by_label("Tool calls").select_option("required")
        await page.click("#tune")
        await say("What is the weather in Paris?")
        call = await (await reply()).inner_text()
        assert "Call of get_weather" in call and "Paris" in call
        await page.click("#tune")
        await page.get_by_label("Tool calls").select_option("none")
        for box in await page.get_by_label("Its result").all():
            await box.fill("18 degrees and sunny")
        await page.get_by_text("Send the results").click()
        await page.wait_for_selector("article.tool:has-text('sunny')")
        await reply()
        await page.click("#tune")
        await page.click("#new")
        await say("Write a long story about the sea.")
        await page.click("#live-tab")
        await page.wait_for_selector("#live tbody code")
        await page.emulate_media(color_scheme="dark")
        # Until it has drawn twice in these colours.
        await page.wait_for_timeout(1500)
        await page.screenshot(path=shots / "page-live.png")
        await page.emulate_media(color_scheme="light")
        await page.click("#chat-tab")
        await page.click("#send:has-text('Stop')")
        assert "stopped" in await (await reply()).inner_text()
        running = "vllm:num_requests_running{"
        until(
            lambda: (
                [
                    line.split()[-1]
                    for line in httpx.get(f"{url}/metrics").text.splitlines()
                    if line.startswith(running)
                ]
                == ["0.0"]
            )
        )
        await page.set_viewport_size({"width": 390, "height": 760})
        await page.screenshot(path=shots / "page-phone.png")
        await browser.close()
    assert complaints == []

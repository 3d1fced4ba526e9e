"""The page at / as a person uses it, in a real Chromium; skipped where none is installed."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.resources import files
from typing import Any

import pytest

from tests.server.browsing import Steps, Visit, visiting
from tests.server.fake_client import FakeEngineClient
from vllm_lite.errors import UnavailableError

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
RICH = """\
# Title

A **bold** `word`, a [link](https://example.com) and &amp;.

| a | b |
|---|--:|
| 1 | 2 |

### Below

- [x] done

## Beside

```python
def f() -> int:
    return 1  # one
```
"""
HOSTILE = """\
<img src=x onerror="window.hit=1"><script>window.hit=1</script>
[a](javascript:window.hit=1) ![b](https://elsewhere.invalid/x.png) <b onclick="window.hit=1">c</b>

<iframe src="https://elsewhere.invalid"></iframe>
"""
BLOCK_COLOURS = """() => {
  const map = document.querySelector("#live canvas")
  if (map.getBoundingClientRect().right > innerWidth) return []
  const { data } = map.getContext("2d").getImageData(0, 5, 40, 1)
  return [5, 15, 25, 35].map((x) => data.slice(4 * x, 4 * x + 4).join())
}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


async def test_a_reply_streams_in_and_a_reload_keeps_it() -> None:
    client = FakeEngineClient("Hello there", max_model_len=1024)
    gate = Steps()
    client.gate = gate  # type: ignore[assignment]
    async with visiting(client) as visit:
        await visit.say("hi")
        gate.allow(5)
        await visit.page.wait_for_selector("article.assistant:has-text('Hello')")
        text = await visit.page.inner_text("article.assistant")
        assert "there" not in text
        gate.set()
        shown = await (await visit.reply()).inner_text()
        assert "Hello there" in shown and "12 tokens" in shown
        assert "first after" in shown and "tokens/s" in shown
        await visit.page.reload()
        assert "Hello there" in await (await visit.reply()).inner_text()
        await visit.say("again")
        await visit.page.wait_for_selector("article >> nth=3")
        await visit.reply()
    assert client.seen[1][0]["prompt"] == (
        "<user>hi\n<assistant>Hello there\n<user>again\n<assistant>"
    )


@pytest.mark.parametrize("how", ["button", "escape"])
async def test_stopped_reply_keeps_its_text_and_ends_the_request(how: str) -> None:
    client = FakeEngineClient("Hello there", max_model_len=1024)
    gate = Steps()
    client.gate = gate  # type: ignore[assignment]
    async with visiting(client) as visit:
        await visit.say("hi")
        gate.allow(5)
        await visit.page.wait_for_selector("article.assistant:has-text('Hello')")
        if how == "button":
            await visit.page.click("#send:has-text('Stop')")
        else:
            await visit.page.keyboard.press("Escape")
        shown = await (await visit.reply()).inner_text()
        assert "Hello" in shown and "5 tokens" in shown and "stopped" in shown
        for _ in range(100):
            if not client.running:
                break
            await asyncio.sleep(0.05)
        assert not client.running


async def test_a_message_is_edited_and_a_reply_made_again() -> None:
    client = FakeEngineClient("Yes", max_model_len=1024)
    async with visiting(client) as visit:
        await visit.say("one")
        await (await visit.reply()).get_by_text("Regenerate").click()
        await visit.reply()
        await visit.page.get_by_text("Edit").click()
        await visit.page.get_by_label("Edit the message").fill("two")
        await visit.page.keyboard.press("Enter")
        await visit.page.wait_for_selector("article.user:has-text('two')")
        await visit.reply()
        assert await visit.page.locator("article").count() == 2
    assert [one[0]["prompt"] for one in client.seen] == [
        "<user>one\n<assistant>",
        "<user>one\n<assistant>",
        "<user>two\n<assistant>",
    ]


async def test_settings_reach_the_request() -> None:
    client = FakeEngineClient('{"city": "Rome"}', max_model_len=1024)
    async with visiting(client) as visit:
        page = visit.page
        await page.click("#tune")
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.3")
        await page.get_by_label("Top k").fill("5")
        await page.get_by_label("Most tokens").fill("40")
        await page.get_by_label("JSON schema of the reply").fill('{"type": ')
        assert await page.inner_text("#schema-fault")
        await visit.say("where")
        assert "must be JSON" in await (await visit.reply()).inner_text()
        assert client.seen == []
        await page.get_by_label("JSON schema of the reply").fill('{"type": "object"}')
        await page.get_by_text("Regenerate").click()
        await page.wait_for_selector(".message .t-property")
    prompt, params, _ = client.seen[0]
    assert prompt["prompt"].startswith("<system>Be brief.\n<user>where\n")
    assert (params.temperature, params.top_k, params.max_tokens) == (0.3, 5, 40)
    assert client.prepared[0].json == {"type": "object"}


async def test_a_tool_is_called_and_its_result_sent() -> None:
    client = FakeEngineClient(
        '[{"name": "weather", "parameters": {"city": "Rome"}}]', max_model_len=1024
    )
    async with visiting(client) as visit:
        await visit.page.click("#tune")
        await visit.page.get_by_label("Tools (JSON list)").fill(json.dumps(TOOLS))
        await visit.page.get_by_label("Tool calls").select_option("required")
        await visit.say("weather?")
        reply = await visit.reply()
        assert "Call of weather" in await reply.inner_text()
        assert '"Rome"' in await reply.inner_text()
        await visit.page.get_by_label("Tool calls").select_option("none")
        await visit.page.get_by_label("Its result").fill("sunny")
        await visit.page.get_by_text("Send the results").click()
        await visit.page.wait_for_selector("article.tool:has-text('sunny')")
        await visit.reply()
    assert "<tool>sunny\n" in client.seen[1][0]["prompt"]


async def test_reasoning_is_folded() -> None:
    client = FakeEngineClient(
        "because</think>so", max_model_len=1024, reasoning_parser="deepseek_r1"
    )
    async with visiting(client) as visit:
        await visit.say("why")
        reply = await visit.reply()
        assert await reply.locator(".text").inner_text() == "so"
        assert not await reply.get_by_text("because").is_visible()
        await reply.get_by_text("Reasoning").click()
        assert await reply.get_by_text("because").is_visible()


async def test_page_shows_the_server_s_error_messages() -> None:
    client = FakeEngineClient("Hello", max_model_len=1024)
    client.refusal = UnavailableError("The server is shutting down")
    async with visiting(client, complaints="Failed to load resource") as visit:
        await visit.say("hi")
        assert "The server is shutting down" in await (await visit.reply()).inner_text()
        client.refusal = None
        client.failure, client.fail_after = RuntimeError("broken"), 3
        await visit.page.get_by_text("Regenerate").click()
        shown = visit.page.locator("article.assistant .error")
        await visit.page.wait_for_selector("article.assistant:has-text('Hel')")
        await visit.reply()
        assert await shown.inner_text() and "broken" not in await shown.inner_text()
        await visit.page.context.set_offline(True)
        await visit.page.get_by_text("Regenerate").click()
        await visit.page.wait_for_selector("article.assistant:has-text('cannot be reached')")
        await visit.page.context.set_offline(False)
        client.failure = None
        await visit.page.get_by_text("Regenerate").click()
        await visit.page.wait_for_selector("article.assistant:has-text('Hello')")
        assert await shown.count() == 0


async def test_a_key_is_asked_for_until_one_fits() -> None:
    client = FakeEngineClient("Hello", max_model_len=1024)
    keys = {"api_key": ["sécond"]}
    async with visiting(client, complaints="401", **keys) as visit:
        await visit.page.fill("#key", "wrong")
        await visit.page.keyboard.press("Enter")
        await visit.page.wait_for_selector("#key-why:has-text('not accepted')")
        await visit.page.fill("#key", "sécond")
        await visit.page.keyboard.press("Enter")
        await visit.page.wait_for_selector("#model option[value=tiny]", state="attached")
        await visit.say("hi")
        assert "Hello" in await (await visit.reply()).inner_text()
        await visit.page.click("#api-tab")
        await visit.page.click("summary:has-text('/v1/chat/completions')")
        code = await visit.page.inner_text(".snippet")
        assert "VLLM_API_KEY" in code and "sécond" not in code
        # It stays in this tab alone unless it is to be kept.
        assert "sécond" not in await visit.page.evaluate("JSON.stringify(localStorage)")


async def test_hostile_replies_stay_text() -> None:
    async with visiting(FakeEngineClient(HOSTILE, max_model_len=1024)) as visit:
        await visit.say("hi")
        reply = await visit.reply()
        assert "<script>" in await reply.inner_text()
        assert await reply.locator("img, script, iframe, b, [onclick]").count() == 0
        links = await reply.locator("a").evaluate_all("all => all.map((one) => one.href)")
        assert links == ["https://elsewhere.invalid/x.png"]
        assert await visit.page.evaluate("window.hit") is None
        # The browser itself would refuse to make HTML of text.
        refused = "try { document.body.innerHTML = '<p>'; false } catch { true }"
        assert await visit.page.evaluate(refused)
        assert visit.complaints and all("TrustedHTML" in one for one in visit.complaints)
        visit.complaints.clear()


async def test_conversations_are_kept_listed_exported_and_deleted() -> None:
    async with visiting(FakeEngineClient("Hello", max_model_len=1024)) as visit:
        page = visit.page
        for text in ("first", "second"):
            await page.click("#new")
            await visit.say(text)
            await visit.reply()
        names = page.locator("#conversations li button:first-child")
        assert await names.all_inner_texts() == ["second", "first"]
        await page.locator("#conversations li button").nth(2).click()
        async with page.expect_download() as download:
            await page.click("#export-text")
        with open(await (await download.value).path()) as file:
            assert file.read() == "# first\n\n**user**\n\nfirst\n\n**assistant**\n\nHello\n"
        async with page.expect_download() as download:
            await page.click("#export-all")
        with open(await (await download.value).path()) as file:
            assert [len(one["messages"]) for one in json.load(file)] == [2, 2]
        await page.get_by_label("Delete: first").click()
        await page.wait_for_selector("article.user:has-text('second')")
        assert await page.locator("#conversations li").count() == 1


async def test_the_api_view_makes_programs_that_run() -> None:
    async with visiting(FakeEngineClient("Hello", max_model_len=1024)) as visit:
        page = visit.page
        await page.click("#api-tab")
        route = page.locator(".route", has_text="/v1/chat/completions").first
        await route.locator("summary").click()
        await route.get_by_role("button", name="Send").click()
        await page.wait_for_selector(".answer:has-text('200 OK')")
        assert '"Hello"' in await route.locator(".answer").inner_text()
        for path in ("/v1/chat/completions", "/tokenize", "/v1/models"):
            route = page.locator(".route", has=page.locator(f"code:text-is('{path}')"))
            if await route.get_attribute("open") is None:
                await route.locator("summary").click()
            for language, command in (("curl", ["sh"]), ("Python", [sys.executable, "-"])):
                await route.locator("select").select_option(language)
                program = await route.locator(".snippet code").inner_text()
                out = await _run(command, program)
                assert "tiny" in out or "tokens" in out, (path, language, out)


async def _run(command: list[str], program: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    out, _ = await asyncio.wait_for(process.communicate(program.encode()), 60)
    assert process.returncode == 0
    return out.decode()


async def test_a_phone_shows_all_without_scrolling_sideways() -> None:
    async with visiting(FakeEngineClient(RICH, max_model_len=1024), view=PHONE) as visit:
        page = visit.page
        await visit.say("hi " + "x" * 200)
        await visit.reply()
        await _assert_fits(page)
        await page.click("#menu")
        assert await page.get_by_text("New chat").is_visible()
        await _assert_fits(page)
        await page.click("#menu")
        await page.click("#tune")
        assert await page.get_by_label("System prompt").is_visible()
        await _assert_fits(page)
        await page.click("#tune")
        await page.click("#api-tab")
        await page.click("summary:has-text('/v1/chat/completions')")
        await _assert_fits(page)


async def _assert_fits(page: Any) -> None:
    wide = "[...document.querySelectorAll('html, body, main, #log, #settings, #api')]"
    assert await page.evaluate(f"{wide}.every((one) => one.scrollWidth <= innerWidth)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_to_mend(scheme: str) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    client = FakeEngineClient(RICH, max_model_len=1024)
    async with visiting(client, view={"color_scheme": scheme}) as visit:
        await visit.page.evaluate(axe)
        await _assert_accessible(visit, "empty")
        await visit.say("hi")
        await visit.reply()
        await visit.page.click("#tune")
        await _assert_accessible(visit, "chat")
        await visit.page.get_by_text("Edit").click()
        await _assert_accessible(visit, "edit")
        await visit.page.click("#api-tab")
        await visit.page.click("summary:has-text('/v1/chat/completions')")
        await _assert_accessible(visit, "api")
        await visit.page.evaluate("document.getElementById('key-dialog').showModal()")
        await _assert_accessible(visit, "key")


async def _assert_accessible(visit: Visit, where: str) -> None:
    found = await visit.page.evaluate("axe.run().then((result) => result.violations)")
    faults = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
    assert faults == [], where


async def test_the_keyboard_moves_between_views_and_colours_are_kept() -> None:
    async with visiting(FakeEngineClient(max_model_len=1024)) as visit:
        page = visit.page
        await page.focus("#chat-tab")
        await page.keyboard.press("ArrowRight")
        assert await page.get_attribute("#live-tab", "aria-selected") == "true"
        await page.keyboard.press("ArrowRight")
        assert await page.get_attribute("#api-tab", "aria-selected") == "true"
        assert await page.is_hidden("#chat")
        await page.wait_for_selector(".route")
        await page.click("#theme")
        await page.reload()
        assert await page.get_attribute("html", "data-theme") == "light"
        # The view is kept in the address.
        assert await page.is_visible("#api")


@pytest.mark.parametrize("view", [{}, PHONE])
async def test_the_live_view_follows_the_engine_while_it_is_shown(view: dict[str, Any]) -> None:
    client = FakeEngineClient("Hello", max_model_len=1024)
    async with visiting(client, view=view) as visit:
        page = visit.page
        assert client.num_snapshots == 0
        await page.get_by_role("tab", name="Live").click()
        await page.wait_for_selector("#live dd:has-text('40.0')")  # 20 rows in half a second
        text = await page.inner_text("#live")
        blocks = ("1 free", "1 cached", "2 in use")
        for shown in ("chat-0", "20 (16)", "20.0 ms", "weights 1.00 s", *blocks):
            assert shown in text, shown
        colours = await page.evaluate(BLOCK_COLOURS)
        assert colours[0] == colours[1] and len({*colours}) == 3
        axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
        await page.evaluate(axe)
        await _assert_accessible(visit, "live")
        await page.get_by_role("tab", name="Chat").click()
        await page.wait_for_selector("#live", state="hidden")
        await asyncio.sleep(1)
        before = client.num_snapshots
        await asyncio.sleep(1)
        assert client.num_snapshots == before

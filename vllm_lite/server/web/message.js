// Shows one message. Knows nothing of the conversation: what its buttons do is given.

import { copyButton, h } from "./dom.js"
import { codeBlock, markdown } from "./markdown.js"

const NAMES = { user: "You", assistant: "Reply", tool: "Result" }
const ENDINGS = {
  length: "cut at the token limit",
  stopped: "stopped",
  abort: "ended by the server",
  repetition: "ended: it repeated itself",
}

/** The element of a message; `actions` has edit, regenerate and answer where they apply. */
export function messageView(message, actions) {
  const inner = message.role === "assistant" ? replyParts(message, actions) : [ownPart(message)]
  const name = NAMES[message.role]
  return h(
    "article",
    { class: `message ${message.role}`, "aria-label": name },
    h("h2", { class: "hidden" }, name),
    ...inner,
    footer(message, actions),
  )
}

function ownPart(message) {
  if (message.role !== "tool") return h("div", { class: "text plain" }, message.content)
  return h("div", { class: "text" }, h("strong", {}, `Result of ${message.name}`), codeBlock(message.content, "json"))
}

function replyParts(message, actions) {
  const parts = []
  if (message.reasoning) parts.push(reasoning(message))
  if (message.content) parts.push(h("div", { class: "text" }, ...body(message)))
  for (const call of message.tool_calls ?? []) parts.push(toolCall(call, actions.answer))
  if (actions.answer && message.tool_calls?.length) parts.push(answerButton(message, actions.answer))
  if (message.error) parts.push(h("p", { class: "error", role: "alert" }, message.error))
  if (actions.busy && parts.length === 0) parts.push(h("div", { class: "waiting" }, h("span", {}), h("span", {}), h("span", {})))
  return parts
}

function body(message) {
  return message.structured ? [codeBlock(pretty(message.content), "json")] : markdown(message.content)
}

function reasoning(message) {
  const label = message.content || message.tool_calls?.length ? "Reasoning" : "Reasoning…"
  return h("details", { class: "reasoning" }, h("summary", {}, label), ...markdown(message.reasoning))
}

function toolCall(call, answer) {
  const { name, arguments: text } = call.function
  return h(
    "div",
    { class: "call" },
    h("strong", {}, `Call of ${name}`),
    codeBlock(pretty(text), "json"),
    answer &&
      h("label", {}, "Its result", h("textarea", { rows: 2, class: "mono", "data-call": call.id })),
  )
}

function answerButton(message, answer) {
  const send = (event) => {
    const areas = event.target.closest("article").querySelectorAll("textarea[data-call]")
    answer(message.tool_calls.map((call, i) => ({ call, content: areas[i].value })))
  }
  return h("button", { type: "button", class: "primary", onclick: send }, "Send the results")
}

function footer(message, actions) {
  if (actions.busy) return h("footer", {})
  const buttons = [copyButton(() => message.content)]
  if (actions.edit) buttons.push(h("button", { type: "button", onclick: actions.edit }, "Edit"))
  if (actions.regenerate) {
    buttons.push(h("button", { type: "button", onclick: actions.regenerate }, "Regenerate"))
  }
  return h("footer", {}, ...buttons, message.stats && h("span", { class: "stats" }, statsLine(message.stats)))
}

/** "128 tokens · first after 0.12 s · 45.2 tokens/s". */
export function statsLine({ tokens, first, rate, finish }) {
  const parts = []
  if (tokens !== undefined) parts.push(tokens === 1 ? "1 token" : `${tokens} tokens`)
  if (first !== undefined) parts.push(`first after ${(first / 1000).toFixed(2)} s`)
  if (rate !== undefined) parts.push(`${rate.toFixed(1)} tokens/s`)
  if (finish in ENDINGS) parts.push(ENDINGS[finish])
  return parts.join(" · ")
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}

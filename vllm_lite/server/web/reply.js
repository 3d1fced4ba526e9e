// One reply: the request, what streams back put together, and how long it took.

import { call, events } from "./api.js"
import { fieldsOf } from "./settings.js"

/** Fill `message` as the reply to `history` streams in; `changed` hears of each part. */
export async function stream(message, history, settings, model, signal, changed) {
  const body = {
    model,
    messages: asRequested(history, settings.system),
    ...fieldsOf(settings),
    stream: true,
    // Counted all along, so that a stopped reply has its count too.
    stream_options: { include_usage: true, continuous_usage_stats: true },
  }
  const begun = performance.now()
  let first = null
  const response = await call("v1/chat/completions", { body: JSON.stringify(body), signal })
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message)
    const choice = chunk.choices?.[0]
    const isPart = choice ? take(message, choice) : false
    const now = performance.now()
    if (isPart) first ??= now
    if (chunk.usage) count(message.stats, chunk.usage.completion_tokens, begun, first, isPart ? now : null)
    changed()
  }
}

function count(stats, tokens, begun, first, now) {
  if (tokens) stats.tokens = tokens
  if (first === null) return
  stats.first = first - begun
  if (now > first && tokens > 1) stats.rate = ((tokens - 1) * 1000) / (now - first)
}

/** Add a choice's delta to the message; true where it holds something of the model's. */
function take(message, { delta = {}, finish_reason: finish }) {
  const reasoning = delta.reasoning ?? delta.reasoning_content
  message.content += delta.content ?? ""
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning
  for (const part of delta.tool_calls ?? []) takeCall(message, part)
  if (finish) message.stats.finish = finish
  return Boolean(delta.content || reasoning || delta.tool_calls?.length)
}

function takeCall(message, { index = 0, id, function: part = {} }) {
  message.tool_calls ??= []
  const known = (message.tool_calls[index] ??= {
    id: id ?? `call-${index}`,
    type: "function",
    function: { name: "", arguments: "" },
  })
  if (id) known.id = id
  known.function.name += part.name ?? ""
  known.function.arguments += part.arguments ?? ""
}

/** Messages as the API takes them: without what this page adds, or what failed. */
function asRequested(history, system) {
  const sent = history
    .filter((m) => m.role !== "assistant" || m.content || m.tool_calls?.length)
    .map(({ role, content, tool_calls, tool_call_id }) => ({
      role,
      content,
      ...(tool_calls?.length && { tool_calls }),
      ...(tool_call_id && { tool_call_id }),
    }))
  return system ? [{ role: "system", content: system }, ...sent] : sent
}

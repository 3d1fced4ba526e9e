// Keeps conversations in the browser, each under a key of its own, so that two tabs can write.

const PREFIX = "vllm-lite.chat."
const DEFAULTS = "vllm-lite.settings"

export function conversations() {
  const found = Object.keys(localStorage)
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => read(name))
  return found.filter((one) => one?.id).sort((a, b) => b.updated - a.updated)
}

export function load(id) {
  return read(PREFIX + id)
}

/** False where the browser has no more room. */
export function save(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation))
    localStorage.setItem(DEFAULTS, JSON.stringify(conversation.settings))
    return true
  } catch {
    return false
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id)
}

/** A new conversation with the settings that were used last. */
export function create() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8)
  return { id, updated: Date.now(), messages: [], settings: read(DEFAULTS) ?? {} }
}

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user")
  return first ? first.content.trim().replace(/\s+/g, " ").slice(0, 60) || "Chat" : "New chat"
}

/** The conversation as Markdown. */
export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`]
  if (conversation.settings.system) parts.push(`**System**\n\n${conversation.settings.system}`)
  for (const message of conversation.messages) {
    const calls = (message.tool_calls ?? []).map(
      (call) => "```json\n" + JSON.stringify(call.function, null, 2) + "\n```",
    )
    parts.push([`**${message.role}**`, message.content, ...calls].filter(Boolean).join("\n\n"))
  }
  return parts.join("\n\n") + "\n"
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name))
  } catch {
    return null
  }
}

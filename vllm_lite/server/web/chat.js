// The chat: one conversation on show, its list beside it, and the reply that streams into it.

import { announce, byId, download, h } from "./dom.js"
import { messageView, statsLine } from "./message.js"
import { stream } from "./reply.js"
import { showSettings } from "./settings.js"
import * as store from "./store.js"

const IDEAS = [
  "Explain what a KV cache is, with an example.",
  "Write a Python function that merges two sorted lists.",
  "Compare three ways to make coffee in a table.",
]
const SAVE_EVERY = 1000
const NEAR_THE_END = 80

let conversation = store.conversations()[0] ?? store.create()
let running = null
let model = () => undefined

/** Begin; `chosenModel` gives the name to ask. */
export function startChat(chosenModel) {
  model = chosenModel
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault()
    if (running) stop()
    else send()
  })
  byId("prompt").addEventListener("input", fit)
  byId("prompt").addEventListener("keydown", onKey)
  document.addEventListener("keydown", (event) => event.key === "Escape" && running && stop())
  window.addEventListener("pagehide", keep)
  byId("new").addEventListener("click", () => show(store.create()))
  byId("export-text").addEventListener("click", exportText)
  byId("export-all").addEventListener("click", exportAll)
  show(conversation, false)
}

function onKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault()
    if (!running) send()
  } else if (event.key === "ArrowUp" && !event.target.value && !running) {
    const last = conversation.messages.findLastIndex((message) => message.role === "user")
    if (last >= 0) edit(last)
  }
}

function send() {
  const text = byId("prompt").value.trim()
  if (!text) return
  byId("prompt").value = ""
  fit()
  conversation.messages.push({ role: "user", content: text })
  generate()
}

function stop() {
  running.abort()
}

/** Have the model reply to all there is. */
async function generate() {
  const shown = conversation
  const history = [...shown.messages]
  const message = { role: "assistant", content: "", stats: {}, structured: Boolean(shown.settings.schema) }
  shown.messages.push(message)
  shown.updated = Date.now()
  const controller = new AbortController()
  running = controller
  keep()
  if (byId("log").contains(document.activeElement)) byId("log").focus()
  draw()
  announce("The model replies")
  const follow = follower(shown, message)
  try {
    await stream(message, history, shown.settings, model(), controller.signal, follow)
    announce(`Reply finished: ${statsLine(message.stats)}`)
  } catch (error) {
    if (error.name === "AbortError") {
      message.stats.finish = "stopped"
      announce("Stopped")
    } else message.error = error.message
  }
  if (running === controller) running = null
  if (!shown.isGone) store.save(shown)
  if (shown === conversation) draw()
}

/** Draws and keeps the reply as it grows, less often where drawing takes longer. */
function follower(shown, message) {
  let timer = null
  let kept = Date.now()
  const update = () => {
    timer = null
    if (!running || shown !== conversation) return
    const begun = performance.now()
    const old = byId("log").lastElementChild
    const isOpen = old.querySelector("details")?.open
    const fresh = messageView(message, { busy: true })
    if (isOpen) fresh.querySelector("details").open = true
    keepingPlace(() => old.replaceWith(fresh))
    if (Date.now() - kept > SAVE_EVERY) {
      store.save(shown)
      kept = Date.now()
    }
    pause = Math.max(40, 4 * (performance.now() - begun))
  }
  let pause = 0
  return () => (timer ??= setTimeout(update, pause))
}

/** Change the log; its end stays in view where it was. */
function keepingPlace(change) {
  const log = byId("log")
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_THE_END
  change()
  if (atEnd) log.scrollTop = log.scrollHeight
}

function show(other, focus = true) {
  if (other !== conversation) {
    running?.abort()
    running = null
  }
  conversation = other
  document.body.classList.remove("menu-open")
  byId("menu").setAttribute("aria-expanded", "false")
  showSettings(conversation.settings, () => conversation.messages.length && keep())
  draw()
  if (focus) byId("prompt").focus()
}

function draw() {
  const { messages } = conversation
  const views = messages.map((message, at) => messageView(message, actionsOf(message, at)))
  byId("log").replaceChildren(...(views.length ? views : [welcome()]))
  byId("log").scrollTop = byId("log").scrollHeight
  const button = byId("send")
  button.textContent = running ? "Stop" : "Send"
  button.setAttribute("aria-label", button.textContent)
  button.classList.toggle("stop", running !== null)
  drawList()
}

function actionsOf(message, at) {
  const isLast = at === conversation.messages.length - 1
  if (running) return { busy: isLast }
  if (message.role === "user") return { edit: () => edit(at) }
  if (message.role === "tool") return {}
  const answer = isLast && message.tool_calls?.length ? answerCalls : undefined
  return { answer, regenerate: () => (cutAt(at), generate()) }
}

function cutAt(at) {
  conversation.messages.length = at
}

function answerCalls(results) {
  for (const { call, content } of results) {
    conversation.messages.push({ role: "tool", tool_call_id: call.id, name: call.function.name, content })
  }
  generate()
}

/** Put a text area in a message's place; what follows it goes when the change is sent. */
function edit(at) {
  const area = h("textarea", { value: conversation.messages[at].content, rows: 3, "aria-label": "Edit the message" })
  const save = () => {
    if (!area.value.trim()) return
    cutAt(at)
    conversation.messages.push({ role: "user", content: area.value.trim() })
    generate()
  }
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault()
      save()
    } else if (event.key === "Escape") draw()
  })
  const buttons = h(
    "div",
    { class: "row" },
    h("button", { type: "button", onclick: draw }, "Cancel"),
    h("button", { type: "button", class: "primary", onclick: save }, "Send the change"),
  )
  byId("log").children[at].replaceChildren(area, buttons)
  area.focus()
}

function welcome() {
  const idea = (text) => {
    const take = () => {
      byId("prompt").value = text
      send()
    }
    return h("button", { type: "button", onclick: take }, text)
  }
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "What shall we talk about?"),
    h("p", {}, "Everything stays between this browser and your server."),
    h("div", { class: "ideas" }, ...IDEAS.map(idea)),
  )
}

function drawList() {
  const row = (one) => {
    const title = store.titleOf(one)
    const isShown = one.id === conversation.id
    const open = h("button", { "aria-current": isShown && "true", onclick: () => show(isShown ? conversation : store.load(one.id)) }, title)
    const drop = h("button", { class: "icon", "aria-label": `Delete: ${title}`, onclick: () => forget(one) }, "×")
    return h("li", {}, open, drop)
  }
  byId("conversations").replaceChildren(...store.conversations().map(row))
}

function forget(one) {
  if (!confirm(`Delete “${store.titleOf(one)}”?`)) return
  store.remove(one.id)
  if (one.id !== conversation.id) return drawList()
  conversation.isGone = true
  show(store.conversations()[0] ?? store.create())
}

function keep() {
  if (!conversation.messages.length || store.save(conversation)) return
  announce("The browser has no room left for conversations: delete some")
}

function exportText() {
  download("conversation.md", "text/markdown", store.asMarkdown(conversation))
}

function exportAll() {
  download("conversations.json", "application/json", JSON.stringify(store.conversations(), null, 2))
}

/** Make the prompt as high as what is written, within limits that the style sets. */
function fit() {
  const area = byId("prompt")
  area.rows = Math.min(8, area.value.split("\n").length)
}

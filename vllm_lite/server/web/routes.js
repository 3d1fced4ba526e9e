// The API: this server's routes, out of its OpenAPI document, each to copy and to try.

import { attempt, call, key, ROOT } from "./api.js"
import { announce, h } from "./dom.js"
import { codeBlock } from "./markdown.js"
import { snippet } from "./snippets.js"

const HI = [{ role: "user", content: "What is the capital of France?" }]
const EXAMPLES = {
  "/v1/chat/completions": { messages: HI, max_tokens: 64 },
  "/v1/chat/completions/batch": { messages: [HI, [{ role: "user", content: "And of Italy?" }]], max_tokens: 32 },
  "/v1/completions": { prompt: "The capital of France is", max_tokens: 16 },
  "/v1/responses": { input: "What is the capital of France?", max_output_tokens: 64 },
  "/v1/messages": { messages: HI, max_tokens: 64 },
  "/v1/messages/count_tokens": { messages: HI },
  "/tokenize": { prompt: "The capital of France is" },
  "/detokenize": { tokens: [1, 2, 3] },
  "/invocations": { messages: HI, max_tokens: 64 },
}
const LANGUAGES = { curl: "bash", Python: "python", JavaScript: "javascript" }
let isShown = false

/** Fill the view, once. */
export async function showRoutes(place, model) {
  if (isShown) return
  isShown = true
  place.replaceChildren(h("p", { class: "hint" }, "Reading the server's routes…"))
  try {
    const { paths } = await (await call("openapi.json")).json()
    const routes = Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, facts]) => ({ method: method.toUpperCase(), path, facts })),
    )
    // First what programs are written for, the rest in the server's order.
    routes.sort((a, b) => (b.path in EXAMPLES) - (a.path in EXAMPLES))
    place.replaceChildren(intro(), ...routes.filter(isForPrograms).map((route) => view(route, model)))
  } catch (error) {
    isShown = false
    const words = `The server's routes cannot be listed: ${error.message}`
    place.replaceChildren(h("p", { class: "error", role: "alert" }, words))
  }
}

const isForPrograms = ({ facts }) => !("text/html" in (facts.responses?.["200"]?.content ?? {})) && facts.summary

function intro() {
  const base = new URL("v1", ROOT).href
  return h(
    "div",
    { class: "intro" },
    h("h2", {}, "The API of this server"),
    h("p", {}, "Clients of OpenAI's API work with this base URL:"),
    codeBlock(base, ""),
  )
}

function view({ method, path, facts }, model) {
  const details = h(
    "details",
    { class: "route" },
    h("summary", {}, h("b", { class: `verb ${method}` }, method), h("code", {}, path), h("span", {}, facts.summary)),
  )
  details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(...trial(method, path, model)))
  return details
}

/** The parts of an opened route: where to send what, in which language, and the answer. */
function trial(method, path, model) {
  const filled = path.replace("{model}", encodeURIComponent(model ?? ""))
  const target = h("input", { value: filled, class: "mono", spellcheck: "false", oninput: draw })
  const example = path in EXAMPLES ? { ...(model && { model }), ...EXAMPLES[path] } : null
  const body =
    method === "POST" &&
    h("textarea", {
      rows: 7,
      class: "mono",
      spellcheck: "false",
      value: example ? JSON.stringify(example, null, 2) : "",
      oninput: draw,
    })
  const language = h("select", { onchange: draw }, ...Object.keys(LANGUAGES).map((name) => h("option", {}, name)))
  const shown = h("div", { class: "snippet" })
  const answer = h("div", { class: "answer" })
  const text = () => (body && body.value.trim()) || undefined
  function draw() {
    const url = new URL(target.value.replace(/^\//, ""), ROOT).href
    const code = snippet(language.value, { method, url, base: new URL("v1", ROOT).href, body: text(), hasKey: key() !== "" })
    shown.replaceChildren(codeBlock(code, LANGUAGES[language.value]))
  }
  draw()
  const run = h("button", { type: "button", class: "primary", onclick: () => send(run, answer, target.value, method, text()) }, "Send")
  return [
    h("label", {}, "Path", target),
    ...(body ? [h("label", {}, "Body", body)] : []),
    h("div", { class: "row" }, h("label", { class: "inline" }, "Snippet for", language), run),
    shown,
    answer,
  ]
}

async function send(button, answer, path, method, body) {
  button.disabled = true
  try {
    const response = await attempt(path, { method, body })
    const text = await response.text()
    const isJson = response.headers.get("content-type")?.includes("json")
    const shown = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text
    const status = `${response.status} ${response.statusText}`
    answer.replaceChildren(h("p", { class: response.ok ? "good" : "error" }, status), codeBlock(shown, isJson ? "json" : ""))
    announce(`Answered ${status}`)
  } catch (error) {
    answer.replaceChildren(h("p", { class: "error", role: "alert" }, error.message))
  }
  button.disabled = false
}

// Talks to the server: every request carries the key, which is asked for where it is missing.

import { byId } from "./dom.js"

export const ROOT = new URL("..", import.meta.url)
const NAME = "vllm-lite.key"
let asking = null

export const key = () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? ""

/** The response of a route; throws an Error with the server's own words where it refuses. */
export async function call(path, options = {}) {
  const response = await attempt(path, options)
  if (response.ok) return response
  const text = await response.text()
  throw new Error(messageOf(text) || `The server answered ${response.status}`)
}

/** The response of a route, whatever it says; asks for a key until one fits. */
export async function attempt(path, { method, body, signal } = {}) {
  for (;;) {
    const sent = key()
    const headers = {}
    if (sent) headers.Authorization = `Bearer ${encoded(sent)}`
    if (body !== undefined) headers["Content-Type"] = "application/json"
    let response
    try {
      response = await fetch(new URL(path.replace(/^\//, ""), ROOT), {
        method: method ?? (body === undefined ? "GET" : "POST"),
        headers,
        body,
        signal,
      })
    } catch (error) {
      if (error.name === "AbortError") throw error
      throw new Error("The server cannot be reached. Is it still running?")
    }
    if (response.status !== 401) return response
    if (sent !== key()) continue
    asking ??= ask(sent).finally(() => (asking = null))
    if (!(await asking)) return response
  }
}

// A header holds bytes: a key beyond Latin-1 goes as UTF-8.
const encoded = (text) => String.fromCharCode(...new TextEncoder().encode(text))

/** Show the dialog; false where it is dismissed. */
function ask(wrong) {
  const dialog = byId("key-dialog")
  byId("key-why").textContent = wrong ? "The key was not accepted." : "It was started with --api-key."
  byId("key").value = ""
  dialog.returnValue = ""
  byId("key-cancel").onclick = () => dialog.close("")
  dialog.showModal()
  byId("key").focus()
  return new Promise((settle) => {
    dialog.addEventListener(
      "close",
      () => {
        const given = byId("key").value.trim()
        const isGiven = dialog.returnValue === "use" && given !== ""
        if (isGiven) {
          sessionStorage.setItem(NAME, given)
          if (byId("keep-key").checked) localStorage.setItem(NAME, given)
          else localStorage.removeItem(NAME)
        }
        settle(isGiven)
      },
      { once: true },
    )
  })
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message
  } catch {
    return ""
  }
}

/** The payloads of a stream of server-sent events. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ""
  for (;;) {
    const { value, done } = await reader.read()
    const lines = (rest + (value ?? "")).split("\n")
    rest = lines.pop()
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue
      const data = line.slice(6)
      if (data === "[DONE]") return
      yield JSON.parse(data)
    }
    if (done) throw new Error("The connection ended in the middle of the reply.")
  }
}

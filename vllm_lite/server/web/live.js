// Live: what the engine does; one stream, open while the view is shown.

import { call, events } from "./api.js"
import { h } from "./dom.js"

const KEPT = 120
const FIGURES = ["Running", "Waiting", "Generated tokens/s", "Prompt tokens/s", "Step", "Between steps", "KV in use", "Prefix hits"]
let leave = null
let parts = null

export function watch(place, isShown) {
  if (!isShown) {
    leave?.abort()
    leave = null
    return
  }
  parts ??= build(place)
  if (!leave) follow((leave = new AbortController()))
}

document.addEventListener("visibilitychange", () => {
  if (parts && !parts.place.hidden) watch(parts.place, !document.hidden)
})

async function follow({ signal }) {
  try {
    let before = null
    for await (const now of events(await call("web/live", { signal }))) {
      parts.error.hidden = true
      draw(now, before ?? now)
      before = now
    }
  } catch (error) {
    if (signal.aborted) return
    parts.error.textContent = error.message
    parts.error.hidden = false
    leave = null
  }
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
  node.append(...children)
  return node
}

function build(place) {
  const values = FIGURES.map(() => h("dd", {}, "–"))
  const line = svg("polyline", { points: "" })
  const map = h("canvas", { "aria-hidden": "true" })
  const key = h("p", { class: "hint" })
  const rows = h("tbody")
  const start = h("ul")
  const error = h("p", { class: "error", role: "alert", hidden: true })
  const heads = ["Request", "Time", "Prompt (cached)", "Output", "Blocks"]
  place.replaceChildren(
    h("div", { class: "live" },
      error,
      h("dl", { class: "figures" }, FIGURES.map((name, at) => h("div", {}, h("dt", {}, name), values[at]))),
      h("h2", {}, "Generated tokens/s, the last minute"),
      svg("svg", { viewBox: `0 0 ${KEPT} 40`, preserveAspectRatio: "none", "aria-hidden": "true", class: "line" }, line),
      h("h2", {}, "KV blocks"), map, key,
      h("h2", {}, "Requests"),
      h("table", { tabindex: 0 }, h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))), rows),
      h("h2", {}, "Start of the engine"), start,
    ),
  )
  return { place, values, line, map, key, rows, start, error, rates: [] }
}

function draw(now, before) {
  const { stats } = now
  const since = now.time - before.time
  const changed = (name) => now[name] - before[name]
  const steps = changed("num_steps")
  const rate = since ? changed("num_rows") / since : 0
  const step = steps ? (1000 * changed("step_seconds")) / steps : 0
  const rest = steps ? Math.max(0, (1000 * since) / steps - step) : 0
  const hits = stats.prefix_cache_queries ? (stats.prefix_cache_hits ?? 0) / stats.prefix_cache_queries : 0
  const shown = [
    stats.num_running ?? 0,
    stats.num_waiting ?? 0,
    rate.toFixed(1),
    since ? ((changed("num_tokens") - changed("num_rows")) / since).toFixed(1) : "0.0",
    `${step.toFixed(1)} ms`,
    `${rest.toFixed(1)} ms`,
    `${(100 * (stats.kv_cache_usage ?? 0)).toFixed(1)} %`,
    `${(100 * hits).toFixed(1)} %`,
  ]
  shown.forEach((text, at) => (parts.values[at].textContent = text))
  drawLine(rate)
  drawBlocks(now)
  const longest = Math.max(1, ...now.requests.map((one) => one.age))
  parts.rows.replaceChildren(...now.requests.map((one, at) => row(one, at, longest)))
  const total = now.start.reduce((sum, [, seconds]) => sum + seconds, 0)
  parts.start.replaceChildren(
    ...now.start.map(([name, value]) => h("li", {}, h("meter", { max: total, value, "aria-hidden": "true" }), ` ${name} ${value.toFixed(2)} s`)),
  )
}

function drawLine(rate) {
  parts.rates = [...parts.rates, rate].slice(-KEPT)
  const top = Math.max(1, ...parts.rates)
  parts.line.setAttribute("points", parts.rates.map((one, at) => `${at},${39 - (37 * one) / top}`).join(" "))
}

const colour = (at) => `hsl(${(at * 137) % 360} 65% 50%)`

function drawBlocks({ blocks, stride }) {
  const size = 10
  const columns = Math.max(1, Math.floor(parts.key.clientWidth / size))
  const { map } = parts
  map.width = columns * size
  map.height = Math.ceil(blocks.length / columns) * size
  const pen = map.getContext("2d")
  const styles = getComputedStyle(map)
  // A canvas knows no light-dark().
  const shades = { "-2": styles.caretColor, "-1": styles.color }
  blocks.forEach((owner, at) => {
    pen.fillStyle = owner >= 0 ? colour(owner) : (shades[owner] ?? styles.fill)
    pen.fillRect((at % columns) * size, Math.floor(at / columns) * size, size - 1, size - 1)
  })
  const [free, cached] = [-2, -1].map((kind) => blocks.filter((one) => one === kind).length)
  const each = stride > 1 ? ` Of ${stride} blocks one is shown.` : ""
  parts.key.textContent = `${free} free (faint), ${cached} cached (grey), ${blocks.length - free - cached} in use.${each}`
}

// Grey while it waited, then its colour.
function row(one, at, longest) {
  const wait = (100 * one.waited) / longest
  const work = (100 * (one.age - one.waited)) / longest
  const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true" },
    svg("rect", { width: wait, height: 8, class: "wait" }),
    svg("rect", { x: wait, width: work, height: 8, fill: colour(at), opacity: one.num_output_tokens ? 1 : 0.5 }))
  const state = one.is_running ? (one.num_output_tokens ? "writes" : "reads") : "waits"
  const cells = [
    h("code", {}, one.request_id.slice(0, 40)),
    h("span", {}, bar, ` ${state}, ${one.age.toFixed(1)} s`),
    `${one.num_prompt_tokens} (${one.num_cached_tokens})`,
    String(one.num_output_tokens),
    String(one.num_blocks),
  ]
  return h("tr", {}, cells.map((cell) => h("td", {}, cell)))
}

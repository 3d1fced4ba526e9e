// Shows Markdown as elements, from marked's tokens: no HTML is made or parsed, so none can get in.

import { copyButton, h } from "./dom.js"
import { marked } from "./vendor/marked.js"
import Prism from "./vendor/prism.js"

// Colouring more than this would be felt while a reply streams.
const MOST_COLOURED = 20000
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" }
// Languages near enough to C to be coloured as such.
const LIKE_C = /^(c|c\+\+|cc|cpp|cs|csharp|dart|go|golang|h|hpp|java|kotlin|kt|php|rs|rust|scala|swift|zig)$/
const SIMPLE = { strong: "strong", em: "em", del: "del", blockquote: "blockquote" }

// The depths of the headings above the present place, outermost first.
let above = []

export function markdown(text) {
  above = []
  return blocks(marked.lexer(text, { gfm: true, breaks: true }))
}

/** A block of code with its colours and a button that copies it. */
export function codeBlock(text, language = "") {
  const name = language.trim().split(/\s/)[0].toLowerCase()
  const code = h("code", {}, ...coloured(text, name))
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, name || "text"), copyButton(() => text)),
    h("pre", { tabindex: "0", role: "region", "aria-label": `Code: ${name || "text"}` }, code),
  )
}

function coloured(text, name) {
  const known = LIKE_C.test(name) ? "clike" : name
  const grammar = Object.hasOwn(Prism.languages, known) ? Prism.languages[known] : null
  if (typeof grammar !== "object" || grammar === null || text.length > MOST_COLOURED) return [text]
  return Prism.tokenize(text, grammar).map(piece)
}

function piece(token) {
  if (typeof token === "string") return token
  const content = Array.isArray(token.content) ? token.content : [token.content]
  return h("span", { class: `t-${token.type}` }, ...content.map(piece))
}

const blocks = (tokens = []) => tokens.map(element)

function element(token) {
  if (token.type in SIMPLE) return h(SIMPLE[token.type], {}, ...blocks(token.tokens))
  switch (token.type) {
    case "space":
    case "def":
      return null
    case "heading":
      return h(`h${levelOf(token.depth)}`, {}, ...blocks(token.tokens))
    case "paragraph":
      return h("p", {}, ...blocks(token.tokens))
    case "code":
      return codeBlock(token.text, token.lang)
    case "codespan":
      return h("code", {}, token.text)
    case "br":
      return h("br")
    case "hr":
      return h("hr")
    case "list":
      return list(token)
    case "checkbox":
      return h("input", { type: "checkbox", disabled: true, checked: token.checked, "aria-label": "Task" })
    case "table":
      return table(token)
    case "link":
    case "image":
      return link(token)
    case "escape":
      return token.text
    case "text":
      return token.tokens ? h("span", {}, ...blocks(token.tokens)) : decoded(token.text)
    default:
      return token.raw
  }
}

/** A heading's level: one below that above it, whatever the text skips; the message's own is 2. */
function levelOf(depth) {
  above = [...above.filter((other) => other < depth), depth]
  return Math.min(2 + above.length, 6)
}

function list(token) {
  const items = token.items.map((item) => h("li", {}, ...blocks(item.tokens)))
  return token.ordered ? h("ol", { start: token.start }, ...items) : h("ul", {}, ...items)
}

function table(token) {
  const row = (cells, tag) =>
    h("tr", {}, ...cells.map((c) => h(tag, { class: c.align && `to-${c.align}` }, ...blocks(c.tokens))))
  const body = token.rows.map((cells) => row(cells, "td"))
  const head = h("thead", {}, row(token.header, "th"))
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, head, h("tbody", {}, ...body)),
  )
}

/** A link; an image too is one, as loading it would tell its host of the conversation. */
function link(token) {
  const inner = token.type === "image" ? [`Image: ${token.text || token.href}`] : blocks(token.tokens)
  if (!/^(https?|mailto):/i.test(token.href)) return h("span", {}, ...inner)
  return h("a", { href: token.href, target: "_blank", rel: "noopener noreferrer" }, ...inner)
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (whole, ten, sixteen, name) => {
    if (name) return Object.hasOwn(NAMED, name) ? NAMED[name] : whole
    const point = ten ? Number(ten) : parseInt(sixteen, 16)
    return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole
  })
}

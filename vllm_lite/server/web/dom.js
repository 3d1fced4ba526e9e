// Builds elements. Text only ever becomes text: nothing here or elsewhere parses HTML.

/** An element: attributes by name, listeners as `onclick` and so on, children as nodes or text. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue
    if (typeof value === "function") node.addEventListener(name.slice(2), value)
    else if (name === "value") node.value = value
    else node.setAttribute(name, value === true ? "" : value)
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false))
  return node
}

export const byId = (id) => document.getElementById(id)

/** Tell those who listen rather than look. */
export function announce(text) {
  byId("status").textContent = text
}

/** A button that copies what `text()` gives. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", onclick: copy }, label)
  async function copy() {
    let done = "Copied"
    try {
      await navigator.clipboard.writeText(text())
    } catch {
      // The clipboard is there on https and localhost only.
      done = "Not allowed here"
    }
    button.textContent = done
    announce(done)
    setTimeout(() => (button.textContent = label), 1500)
  }
  return button
}

/** Have the browser save a file. */
export function download(name, type, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

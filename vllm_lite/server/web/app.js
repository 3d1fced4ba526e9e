// Begins: views, colours, the model's name.

import { call } from "./api.js"
import { announce, byId, h } from "./dom.js"
import { startChat } from "./chat.js"
import { watch } from "./live.js"
import { showRoutes } from "./routes.js"

const TABS = [...document.querySelectorAll("[role=tab]")]
const THEMES = { auto: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] }

function showTab(tab, focus = false) {
  for (const one of TABS) {
    const isShown = one === tab
    one.setAttribute("aria-selected", String(isShown))
    one.tabIndex = isShown ? 0 : -1
    byId(one.getAttribute("aria-controls")).hidden = !isShown
  }
  document.body.dataset.view = tab.getAttribute("aria-controls")
  history.replaceState(null, "", `#${document.body.dataset.view}`)
  if (focus) tab.focus()
  watch(byId("live"), tab.id === "live-tab")
  if (tab.id === "api-tab") known.then(() => showRoutes(byId("api"), model()))
}

function startTabs() {
  for (const [at, tab] of TABS.entries()) {
    tab.addEventListener("click", () => showTab(tab))
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
      if (step) showTab(TABS[(at + step + TABS.length) % TABS.length], true)
    })
  }
  showTab(TABS.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? TABS[0])
}

function startTheme() {
  const button = byId("theme")
  const root = document.documentElement
  const names = Object.keys(THEMES)
  const draw = () => {
    const [sign, words] = THEMES[root.dataset.theme] ?? THEMES.auto
    button.textContent = sign
    button.setAttribute("aria-label", `Colours: ${words}`)
  }
  button.addEventListener("click", () => {
    root.dataset.theme = names[(names.indexOf(root.dataset.theme) + 1) % names.length]
    localStorage.setItem("vllm-lite.theme", root.dataset.theme)
    draw()
  })
  draw()
}

function startDrawers() {
  byId("menu").addEventListener("click", () => {
    const isOpen = document.body.classList.toggle("menu-open")
    byId("menu").setAttribute("aria-expanded", String(isOpen))
  })
  byId("tune").addEventListener("click", () => {
    byId("settings").hidden = !byId("settings").hidden
    byId("tune").setAttribute("aria-expanded", String(!byId("settings").hidden))
  })
}

const model = () => byId("model").value || undefined

async function startModel() {
  try {
    const { data } = await (await call("v1/models")).json()
    byId("model").replaceChildren(...data.map((one) => h("option", { value: one.id }, one.id)))
  } catch (error) {
    byId("model").replaceChildren(h("option", { value: "" }, "not known"))
    announce(error.message)
  }
}

startTheme()
startDrawers()
startChat(model)
const known = startModel()
startTabs()

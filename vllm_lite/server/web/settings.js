// The settings of a conversation: a form, and the request's fields that it stands for.

import { byId, h } from "./dom.js"

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.05 }],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: 0.05 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }],
]
const TOOLS_HINT = '[{"type": "function", "function": {"name": "get_weather", …}}]'
const SCHEMA_HINT = '{"type": "object", "properties": {…}}'

/** Fill the form with `settings`; `changed` hears of every change. */
export function showSettings(settings, changed) {
  const set = (name, value) => {
    if (value === "") delete settings[name]
    else settings[name] = value
    changed()
  }
  byId("settings").replaceChildren(
    h("h2", {}, "Settings"),
    area("system", "System prompt", settings, set, { rows: 4, placeholder: "None" }),
    h("fieldset", {}, h("legend", {}, "Sampling"), ...NUMBERS.map((one) => number(...one, settings, set))),
    h(
      "fieldset",
      {},
      h("legend", {}, "Tools and structure"),
      json("tools", "Tools (JSON list)", TOOLS_HINT, settings, set),
      choice(settings, set),
      json("schema", "JSON schema of the reply", SCHEMA_HINT, settings, set),
    ),
    h("p", { class: "hint" }, "What is left empty is the server's choice."),
  )
}

/** The fields of a chat request; throws an Error that names what cannot be read. */
export function fieldsOf(settings) {
  const fields = {}
  for (const [name] of NUMBERS) if (settings[name] !== undefined) fields[name] = Number(settings[name])
  if (settings.tools) {
    fields.tools = parsed("Tools", settings.tools)
    if (!Array.isArray(fields.tools)) throw new Error("Tools must be a JSON list.")
    if (settings.tool_choice) fields.tool_choice = settings.tool_choice
  }
  if (settings.schema) {
    const schema = parsed("The JSON schema", settings.schema)
    fields.response_format = { type: "json_schema", json_schema: { name: "reply", schema } }
  }
  return fields
}

function parsed(what, text) {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error(`${what} must be JSON: ${error.message}`)
  }
}

function number(name, label, limits, settings, set) {
  const input = h("input", {
    type: "number",
    name,
    ...limits,
    step: limits.step === 1 ? 1 : "any",
    value: settings[name] ?? "",
    placeholder: "default",
    oninput: () => input.validity.valid && set(name, input.value),
  })
  return h("label", { class: "number" }, label, input)
}

function area(name, label, settings, set, attributes) {
  const input = h("textarea", {
    name,
    value: settings[name] ?? "",
    oninput: () => set(name, input.value),
    ...attributes,
  })
  return h("label", {}, label, input)
}

function json(name, label, placeholder, settings, set) {
  const fault = h("small", { class: "fault", id: `${name}-fault` })
  const check = (text) => {
    fault.textContent = ""
    try {
      if (text) parsed("This", text)
    } catch (error) {
      fault.textContent = error.message
    }
  }
  const field = area(name, label, settings, (_, text) => (check(text.trim()), set(name, text.trim())), {
    rows: 5,
    placeholder,
    spellcheck: "false",
    class: "mono",
    "aria-describedby": fault.id,
  })
  check(settings[name])
  return h("div", {}, field, fault)
}

function choice(settings, set) {
  const options = { "": "The model decides", required: "A call is required", none: "No calls" }
  const select = h(
    "select",
    { name: "tool_choice", onchange: () => set("tool_choice", select.value) },
    ...Object.entries(options).map(([value, text]) => h("option", { value }, text)),
  )
  select.value = settings.tool_choice ?? ""
  return h("label", {}, "Tool calls", select)
}

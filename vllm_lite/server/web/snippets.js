// Programs that make one request, to run as they are. A key comes from VLLM_API_KEY, never from here.

const OPENAI = {
  "POST chat/completions": "chat.completions.create",
  "POST completions": "completions.create",
  "POST responses": "responses.create",
  "GET models": "models.list",
}

export function snippet(language, request) {
  return { curl, Python: python, JavaScript: javascript }[language](request)
}

function curl({ method, url, body, hasKey }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`
  const lines = [`curl -s ${method === "GET" || body ? "" : `-X ${method} `}${quoted(url)}`]
  if (hasKey) lines.push('-H "Authorization: Bearer $VLLM_API_KEY"')
  if (body) lines.push("-H 'Content-Type: application/json'", `-d ${quoted(body)}`)
  return lines.join(" \\\n  ")
}

function python(request) {
  const { method, url, base, body, hasKey } = request
  const call = OPENAI[`${method} ${url.slice(base.length + 1)}`]
  const fields = body === undefined ? {} : parsed(body)
  const isNamed = fields && Object.keys(fields).every((name) => /^[a-z_]\w*$/i.test(name))
  if (!call || !url.startsWith(base) || !isNamed) return plainPython(request)
  const given = Object.entries(fields).map(([name, value]) => `    ${name}=${literal(value)},\n`)
  return [
    hasKey ? "import os\n" : null,
    "from openai import OpenAI\n",
    `client = OpenAI(base_url=${literal(base)}, api_key=${hasKey ? 'os.environ["VLLM_API_KEY"]' : '"none"'})`,
    `reply = client.${call}(${given.length ? `\n${given.join("")}` : ""})`,
    "print(reply)",
  ]
    .filter((line) => line !== null)
    .join("\n")
}

function plainPython({ method, url, body, hasKey }) {
  const headers = []
  if (body) headers.push('"Content-Type": "application/json"')
  if (hasKey) headers.push('"Authorization": "Bearer " + os.environ["VLLM_API_KEY"]')
  const value = body && parsed(body)
  const data = value ? `json.dumps(${literal(value)}).encode()` : body && `${literal(body)}.encode()`
  return [
    value && "import json",
    hasKey && "import os",
    "import urllib.request\n",
    "request = urllib.request.Request(",
    `    ${literal(url)},`,
    data && `    data=${data.replaceAll("\n", "\n    ")},`,
    headers.length && `    headers={${headers.join(", ")}},`,
    `    method="${method}",`,
    ")",
    "with urllib.request.urlopen(request) as reply:",
    "    print(reply.read().decode())",
  ]
    .filter(Boolean)
    .join("\n")
}

function javascript({ method, url, body, hasKey }) {
  const headers = []
  if (body) headers.push('"Content-Type": "application/json"')
  if (hasKey) headers.push("Authorization: `Bearer ${process.env.VLLM_API_KEY}`")
  const value = body && parsed(body)
  const data = value ? `JSON.stringify(${JSON.stringify(value, null, 2).replaceAll("\n", "\n  ")})` : body && JSON.stringify(body)
  const options = [
    method === "GET" ? null : `  method: "${method}",`,
    headers.length ? `  headers: { ${headers.join(", ")} },` : null,
    data ? `  body: ${data},` : null,
  ].filter(Boolean)
  const given = options.length ? `, {\n${options.join("\n")}\n}` : ""
  return `const reply = await fetch(${JSON.stringify(url)}${given})\nconsole.log(await reply.text())`
}

/** A JSON value as Python writes it. */
function literal(value) {
  if (value === null) return "None"
  if (value === true) return "True"
  if (value === false) return "False"
  if (typeof value !== "object") return JSON.stringify(value)
  const isList = Array.isArray(value)
  const parts = isList
    ? value.map((one) => literal(one))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`)
  return (isList ? "[" : "{") + parts.join(", ") + (isList ? "]" : "}")
}

function parsed(text) {
  try {
    const value = JSON.parse(text)
    return typeof value === "object" ? value : null
  } catch {
    return null
  }
}

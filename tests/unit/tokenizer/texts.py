"""Texts that tokenizers get wrong: code, scripts, emoji, runs of spaces, odd characters."""

# ruff: noqa: RUF001

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world!",
    " leading and trailing ",
    "I'll say it's what they've done, won't I'M",
    "def f(x):\n    return {**x, 'a': 1}\n\n\nclass A:\n\tpass\n",
    "  two   three    four     five",
    "\t\ttabs\t and \r\n windows \r\n\r\n lines",
    "1234567890 3.14159 1,000,000 ½ Ⅷ ٣٤",
    "你好，世界。今天天气很好！",
    "こんにちは、カタカナ。안녕하세요 세계",
    "Здравствуй, мир! Γειά σου Κόσμε שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया ไทยภาษา",
    "👋🏽 👨‍👩‍👧‍👦 🇫🇷 ☃️ e\u0301 \u200b\u2028x",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <|im_end|> <|not_special|>",
    "https://example.com/a?b=c&d=%20#frag user@example.com",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ≤ x² + 2·π",
    "a" * 200,
    " " * 65,
    "\x00\x01\x7f\ufeff\ufffd",
    "camelCaseWords SCREAMING_SNAKE kebab-case XMLHttpRequest",
    "$100 €50 £25 ¥1000 50% #1 @home *bold* _it_ ~x~ `code`",
]

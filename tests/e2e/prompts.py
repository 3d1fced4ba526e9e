"""Thirty-two prompts of different kinds for the token-equality tests.

`chat` goes through the demo model's template, the others are plain text. The long ones are
several hundred tokens, so that they span many blocks and chunks.
"""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper counted the ships that passed each night and wrote their number in a "
    "book bound in green cloth. On the first of March there were seven, on the second only two, "
    "and on the third a storm hid the sea so well that he wrote a question mark. "
)
_LEDGER = "\n".join(
    f"{day:02d} March: {3 * day % 11} crates of apples, {7 * day % 13} sacks of flour, "
    f"paid {day * 17 % 101} crowns."
    for day in range(1, 31)
)
_CODE = '''class Matrix:
    """A dense matrix of floats, stored row by row."""

    def __init__(self, rows, columns, values=None):
        self.rows = rows
        self.columns = columns
        self.values = values or [0.0] * (rows * columns)

    def __getitem__(self, index):
        row, column = index
        return self.values[row * self.columns + column]

    def transpose(self):
        values = [self[i, j] for j in range(self.columns) for i in range(self.rows)]
        return Matrix(self.columns, self.rows, values)

'''

CHAT = [
    "What is the capital of France?",
    "Explain why the sky is blue to a ten-year-old.",
    "Give me three tips for learning to play the piano.",
    "Write a short poem about the sea in winter.",
    "Translate 'good morning, my friend' into Spanish.",
    "What is 17 plus 25? Show how you got there.",
    "Who wrote Pride and Prejudice, and when?",
    "List the planets of the solar system in order.",
    "How do I boil an egg?",
    "¿Cuál es la capital de Perú?",
]
TEXT = [
    "Once upon a time, in a village at the foot of a mountain,",
    "The three laws of thermodynamics are",
    "In 1969, the first humans",
    "To make bread you need flour, water, salt and",
    "Q: What is the boiling point of water in Celsius?\nA:",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "a",
]
CODE = [
    "def fibonacci(n):\n",
    "import numpy as np\n\ndef softmax(x):\n    ",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '#include <stdio.h>\n\nint main(void) {\n    printf("',
    "function debounce(callback, delay) {\n  let timer = null;\n",
    _CODE + "    def multiply(self, other):\n",
]
NON_LATIN = [
    "日本の首都は",
    "Москва является столицей",
    "你好，请介绍一下你自己。",  # noqa: RUF001
    "שלום, מה שלומך",
    "🙂🙃 emoji say more than",
]
LONG = [
    _STORY * 6 + "On the last page he wrote:",
    "The ledger of the mill:\n" + _LEDGER + "\n31 March:",
    _CODE * 3 + "class Vector(Matrix):\n",
]

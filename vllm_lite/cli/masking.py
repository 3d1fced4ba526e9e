"""Masks what looks like a secret in text that others will read.

Decides by names and shapes. In doubt it masks: a hidden setting costs a
question, a shown secret an account.
"""

from __future__ import annotations

import re

MASK = "***"
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|DSN", re.IGNORECASE
)
# A word of this trade that only begins like a secret.
_HARMLESS = re.compile(r"TOKENI[SZ]E|MAX_TOKENS|BATCHED_TOKENS", re.IGNORECASE)
_SECRET_TEXTS = (
    # A login in an address; its password may hold any character.
    re.compile(r"(?<=://)\S+(?=@)"),
    # token=..., "api_key": "...", sig=... in a query.
    re.compile(
        r"(?P<kept>(?:key|token|secret|passw\w*|pwd|credentials?|auth|cookie|sig|signature)"
        r"[\"']?\s*[=:]\s*[\"']?)[^\s&\"',;})]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b(?:bearer|basic)\s+)\S+", re.IGNORECASE),
    # The shapes in which well-known services issue keys, and JSON web tokens.
    re.compile(r"\b(?:hf|sk|pk|rk|gh[a-z]|github_pat|glpat|xox[a-z])[-_][\w-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"),
)


def masked_value(name: str, value: str) -> str:
    """The variable's value on one line, without what may be secret in it."""
    if _SECRET_NAME.search(_HARMLESS.sub("", name)):
        return MASK
    return masked_text(" ".join(value.split()))


def masked_text(text: str) -> str:
    """`text` without what has a secret's shape."""
    for secret in _SECRET_TEXTS:
        text = secret.sub(lambda match: match.groupdict().get("kept", "") + MASK, text)
    return text

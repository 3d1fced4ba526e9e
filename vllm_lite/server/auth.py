"""Who may call: bearer keys, compared in constant time.

Knows no routes: app.py guards each route it adds unless told that the route is open.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from vllm_lite.server.errors import AuthenticationError


class ApiKeys:
    """The keys that open the guarded routes; without any, everything is open."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys if key]

    def check(self, headers: Headers) -> None:
        """Raise AuthenticationError unless the request brings one of the keys."""
        if not self._keys:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Headers are latin-1 to Starlette; a key may hold any UTF-8.
        candidate = given.strip().encode("latin-1", "replace")
        matches = False
        for key in self._keys:
            matches |= hmac.compare_digest(candidate, key)
        if scheme.lower() != "bearer" or not matches:
            raise AuthenticationError(
                "The API key is missing or wrong; send the header Authorization: Bearer <key>"
            )

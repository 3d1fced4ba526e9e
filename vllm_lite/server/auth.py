"""API keys, as a bearer token or in Anthropic's header, compared in constant time.

Knows no routes: app.py guards each route it adds unless its row says that it is open.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from vllm_lite.server.errors import AuthenticationError
from vllm_lite.server.generation import tenant_of


class ApiKeys:
    """The keys that open the guarded routes; without any, everything is open."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [(key.encode(), tenant_of(key)) for key in keys if key]

    def check(self, headers: Headers) -> str:
        """Raise AuthenticationError unless the request brings one of the keys.

        Returns the tenant that the key stands for, "" where no key is asked for.
        """
        if not self._keys:
            return ""
        tenant = ""
        for candidate in (_bearer(headers), headers.get("x-api-key", "")):
            # Headers are latin-1 to Starlette; a key may hold any UTF-8.
            given = candidate.strip().encode("latin-1", "replace")
            for key, owner in self._keys:
                # Compare every key, so that the time does not reveal which one fits.
                tenant = owner if hmac.compare_digest(given, key) else tenant
        if not tenant:
            raise AuthenticationError(
                "The API key is missing or wrong; send the header Authorization: Bearer <key>"
            )
        return tenant


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""

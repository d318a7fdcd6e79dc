"""Tokens of service accounts, and what a TokenReview says of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from secrets import token_bytes, token_hex
from typing import Any

from tests.support.kubernetes.store import ACCOUNTS, PODS, Json, Store

API_AUDIENCE = "https://kubernetes.default.svc"
"""Audience of tokens for the API server itself."""
KEPT_S = 10.0
"""Seconds for which the API server keeps a review that accepted a token, even if the Pod of the
token has been deleted."""
PREFIX = "system:serviceaccount"
EXTRA = "authentication.kubernetes.io"


class Tokens:
    """Issues tokens and checks them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = token_bytes(32)
        self._accepted: dict[tuple[str, ...], tuple[float, Json]] = {}
        """Time and claims of reviews by token and audiences."""

    def issue(
        self,
        namespace: str,
        account: str,
        audience: str = API_AUDIENCE,
        life_s: float = 3607.0,
        pod: Json | None = None,
    ) -> str:
        """Return a token, which ends with `pod` if that is given."""
        now = time.time() + self._store.skew_s
        bound: Json = {"namespace": namespace, "serviceaccount": {"name": account}}
        if pod is not None:
            metadata = pod["metadata"]
            bound["pod"] = {"name": metadata["name"], "uid": metadata["uid"]}
            bound["node"] = {"name": pod["spec"].get("nodeName", "")}
        claims = {"aud": [audience], "exp": now + life_s, "iat": now, "jti": token_hex(8)}
        claims |= {"kubernetes.io": bound, "sub": f"{PREFIX}:{namespace}:{account}"}
        body = f"{_encoded({'alg': 'HS256'})}.{_encoded(claims)}"
        return f"{body}.{self._signature(body)}"

    def _signature(self, body: str) -> str:
        made = hmac.new(self._key, body.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def check(self, token: str, audiences: list[str]) -> tuple[Json, str]:
        """Return the claims of a token, and "" or why it is not valid for any of the audiences."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode()):
            if token.count(".") != 2:
                return {}, "invalid bearer token"
            return {}, "[invalid bearer token, go-jose/go-jose: error in cryptographic primitive]"
        claims = json.loads(base64.urlsafe_b64decode(body.partition(".")[2] + "=="))
        if claims["exp"] < time.time() + self._store.skew_s:
            return {}, "[invalid bearer token, service account token has expired]"
        if not set(claims["aud"]) & set(audiences):
            words = f"token audiences {_listed(claims['aud'])} is invalid for the target audiences"
            return {}, f"[invalid bearer token, {words} {_listed(audiences)}]"
        bound = claims["kubernetes.io"]
        account = bound["serviceaccount"]["name"]
        if self._store.get(ACCOUNTS, account, bound["namespace"]) is None:
            return {}, "[invalid bearer token, service account has been deleted]"
        if owner := bound.get("pod"):
            pod = self._store.get(PODS, owner["name"], bound["namespace"])
            if pod is None or pod["metadata"]["uid"] != owner["uid"]:
                return {}, "[invalid bearer token, service account token has been invalidated]"
        return claims, ""

    def review(self, spec: Json) -> Json:
        """Return the status of a TokenReview."""
        audiences = spec.get("audiences") or [API_AUDIENCE]
        token = str(spec["token"])
        key, now = (token, *audiences), time.monotonic()
        found = self._accepted.get(key)
        claims, why = (found[1], "") if found else self.check(token, audiences)
        if found and now - found[0] > KEPT_S:
            claims, why = self.check(token, audiences)
            del self._accepted[key]
        if not why:
            self._accepted.setdefault(key, (now, claims))
        if why:
            return {"user": {}, "error": why}
        bound = claims["kubernetes.io"]
        extra = {f"{EXTRA}/credential-id": [f"JTI={claims['jti']}"]}
        if owner := bound.get("pod"):
            extra[f"{EXTRA}/pod-name"] = [owner["name"]]
            extra[f"{EXTRA}/pod-uid"] = [owner["uid"]]
            extra[f"{EXTRA}/node-name"] = [bound["node"]["name"]]
        groups = [f"{PREFIX}s", f"{PREFIX}s:{bound['namespace']}", "system:authenticated"]
        user = {"username": claims["sub"], "uid": claims["jti"], "groups": groups, "extra": extra}
        common = [one for one in audiences if one in claims["aud"]]
        return {"authenticated": True, "user": user, "audiences": common}


def _encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _listed(words: list[str]) -> str:
    return json.dumps(words)

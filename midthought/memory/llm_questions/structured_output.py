"""Requests JSON of a given schema from a model behind an OpenAI-compatible endpoint. Does not depend on questions.

Every reply is cached by the hash of its request, so that an interrupted run resumes without repeating requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from midthought.errors import NoReplyError, SettingsError
from midthought.http.json_requests import ChatEndpoint, EndpointSettings, Reply, ReplyCache, as_data

NUM_ATTEMPTS = 3
MAX_REPLY_TOKENS = 8192
_THOUGHT = re.compile(r"^.*?</think>|^\s*<think>.*", re.DOTALL)
"""Also one that was cut: an object in it is a draft."""
_MAX_STARTS = 100


class StructuredOutputModel:
    """A model by name. Raises SettingsError for invalid settings, MissingExtraError without httpx."""

    def __init__(self, name: str, endpoint: EndpointSettings, cache_path: str | Path | None = None) -> None:
        if not name:
            raise SettingsError("the model's name is empty; give --model NAME, its name at the endpoint")
        self.name = name
        self.bad_replies: Counter[str] = Counter()
        """Replies, cached ones included, without a valid object, by reason."""
        self._endpoint = ChatEndpoint(endpoint)
        self._cache = ReplyCache(cache_path)
        self._takes_schema = True

    async def ask(
        self,
        instruction: str,
        material: Mapping[str, Any],
        schema: Mapping[str, Any],
        *,
        temperature: float = 0.0,
        max_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Returns the model's JSON object, valid by the schema. `material` is untrusted text and is sent as one JSON object.

        A reply without a valid object is requested again with another seed, `NUM_ATTEMPTS` times in total. Raises NoReplyError.
        """
        problem = ""
        for attempt in range(NUM_ATTEMPTS):
            request = {
                "model": self.name,
                "messages": [
                    {"role": "system", "content": f"{instruction}\n\nReply with one JSON object: {json.dumps(schema)}"},
                    {"role": "user", "content": as_data(material)},
                ],
                "temperature": temperature if attempt == 0 else max(temperature, 0.5),
                "max_tokens": max_tokens or MAX_REPLY_TOKENS,
                "seed": attempt,
            }
            reply = await self._reply(request, schema)
            try:
                return parse_object(reply.text, schema)
            except ValueError as error:
                problem = "was cut" if reply.finish_reason == "length" else str(error)
                self.bad_replies[problem.partition(":")[0]] += 1
        raise NoReplyError(f"{NUM_ATTEMPTS} replies were invalid; the last one {problem}", is_passing=True)

    async def _reply(self, request: dict[str, Any], schema: Mapping[str, Any]) -> Reply:
        """Returns the reply from the cache, else from the endpoint: with `response_format` if the server supports it,
        else with the schema in the prompt only."""
        body = json.dumps(request, sort_keys=True)
        key = hashlib.sha256(f"{self._endpoint.url}\n{body}".encode()).hexdigest()
        if (known := await asyncio.to_thread(self._cache.get, key)) is not None:
            return known
        reply = None
        if self._takes_schema:
            form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": strict(schema), "strict": True}}
            try:
                reply = await self._endpoint.ask(json.dumps(request | {"response_format": form}).encode())
            except NoReplyError as error:
                if error.is_passing or not str(error).startswith(
                    ("status 400", "status 404", "status 422", "status 501")
                ):
                    raise
        if reply is None:
            reply = await self._endpoint.ask(body.encode())
            self._takes_schema = False  # the same request succeeds without it
        await asyncio.to_thread(self._cache.put, key, reply)
        return reply


def strict(schema: Any) -> Any:
    """Converts the schema to OpenAI's strict mode: every property is required, and no others are allowed."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    form = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        form |= {"required": list(schema["properties"]), "additionalProperties": False}
    return form


def parse_object(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first valid JSON object of a reply: alone, in a code fence, or within text, after the model's reasoning.

    Raises ValueError with the problem.
    """
    text = _THOUGHT.sub("", text)
    decoder = json.JSONDecoder()
    problem = "holds no JSON object"
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            break
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if (misfit := _fits(found, schema)) is None:
            return found
        problem = f"does not fit: {misfit}"
        start = text.find("{", end)
    raise ValueError(problem)


def _fits(found: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns the problem of an object, None if it is valid."""
    try:
        jsonschema.validate(found, schema)
    except jsonschema.ValidationError as error:
        return error.message[:200]
    return None

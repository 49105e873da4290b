"""What the loop asks of a model, and the client of OpenAI-compatible endpoints.

A model takes the whole history and gives one reply, telling `on_delta` about its parts as
they arrive. Failures are `ModelError`s; retries happen in here and the loop never sees them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from copilot_insights.errors import InsightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openai import APIError, AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk

Message: TypeAlias = dict[str, Any]
"""One message of the Chat Completions format: role, content, tool_calls, tool_call_id."""

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})
LONGEST_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` stays text if it is no JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. Cached tokens are part of the input, reasoning part of the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of a reply as it arrives: text, or a part of a tool call's arguments."""

    text: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one model call gave. `first_token_ms` counts from the last attempt's start."""

    id: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    first_token_ms: float | None = None


class ModelError(Exception):
    """A call that failed for good.

    Args:
        message: as the provider said it.
        status: HTTP status, None if there was no answer.
        kind: the `errorType` of `session.error`.
    """

    def __init__(self, message: str, status: int | None = None, kind: str = "query") -> None:
        """Nothing of the failed call is kept but this."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind


class Model(Protocol):
    """Anything that answers a history."""

    @property
    def name(self) -> str:
        """The model id written to the log."""

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[Delta], None],
    ) -> Reply:
        """Answer the history; `tools` are Chat Completions function definitions."""

    async def close(self) -> None:
        """Let go of connections; a later `reply` makes new ones."""


def parse_arguments(text: str) -> dict[str, Any] | str:
    """A tool call's arguments; the text itself if it is no JSON object."""
    try:
        value = json.loads(text or "{}", parse_constant=float)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def error_kind(status: int | None) -> str:
    """The `errorType` that the CLI gives to an HTTP status."""
    return {401: "authentication", 403: "authorization", 402: "quota", 429: "rate_limit"}.get(
        status or 0, "query"
    )


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a model is served, in the words of the CLI's `COPILOT_PROVIDER_*` variables."""

    base_url: str
    api_key: str = ""
    bearer_token: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Provider | None:
        """The provider that the CLI itself would use; None if there is none."""
        base_url = environment.get("COPILOT_PROVIDER_BASE_URL")
        if not base_url:
            return None
        kind = environment.get("COPILOT_PROVIDER_TYPE", "openai")
        wire = environment.get("COPILOT_PROVIDER_WIRE_API", "completions")
        if kind != "openai" or wire != "completions":
            raise InsightsError(
                f"COPILOT_PROVIDER_TYPE={kind} with COPILOT_PROVIDER_WIRE_API={wire} is not spoken",
                hint="Only OpenAI-compatible chat completions are.",
            )
        return cls(
            base_url,
            environment.get("COPILOT_PROVIDER_API_KEY", ""),
            environment.get("COPILOT_PROVIDER_BEARER_TOKEN", ""),
        )


def model_from_environment(
    name: str | None, environment: Mapping[str, str] = os.environ
) -> OpenAIModel | None:
    """The model that the CLI's own variables describe; None without a provider."""
    provider = Provider.from_environment(environment)
    if provider is None:
        return None
    name = name or environment.get("COPILOT_PROVIDER_MODEL_ID") or environment.get("COPILOT_MODEL")
    if not name:
        raise InsightsError("No model is named", hint="Pass --model or set COPILOT_MODEL.")
    return OpenAIModel(name, provider, environment.get("COPILOT_PROVIDER_WIRE_MODEL") or name)


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint, streamed, with retries.

    Retried: no connection, and statuses 408, 409, 429 and 5xx; the wait doubles from half a
    second with jitter, or is what `Retry-After` says. A stream that breaks off is retried too:
    nothing of it has reached the log.
    """

    def __init__(
        self, name: str, provider: Provider, wire_name: str | None = None, retries: int = 4
    ) -> None:
        """`wire_name` is sent to the provider in place of `name`."""
        self.name = name
        self.provider = provider
        self.wire_name = wire_name or name
        self.retries = retries
        self._client: AsyncOpenAI | None = None

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            try:
                from openai import AsyncOpenAI  # noqa: PLC0415  # heavy, and optional
            except ImportError as error:
                raise InsightsError(
                    "The openai package is not installed",
                    hint="Run: pip install 'copilot-insights[runner]'.",
                ) from error
            provider = self.provider
            self._client = AsyncOpenAI(
                base_url=provider.base_url,
                # The client insists on a key; local servers have none.
                api_key=provider.bearer_token or provider.api_key or "none",
                default_headers=dict(provider.headers),
                max_retries=0,
            )
        return self._client

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[Delta], None],
    ) -> Reply:
        """See `Model.reply`."""
        client = self._connect()
        from openai import APIConnectionError, APIError, APIStatusError  # noqa: PLC0415  # heavy

        for attempt in range(self.retries + 1):
            try:
                return await self._call(client, messages, tools, on_delta)
            except APIError as error:
                status = error.status_code if isinstance(error, APIStatusError) else None
                retried = status in RETRIED_STATUSES or isinstance(error, APIConnectionError)
                if not retried or attempt == self.retries:
                    message = _error_message(error)
                    if status:
                        message = f"{status} {message}"
                    raise ModelError(message, status, error_kind(status)) from error
                await asyncio.sleep(_backoff_seconds(attempt, error))
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """See `Model.close`."""
        if self._client:
            client, self._client = self._client, None
            await client.close()

    async def _call(
        self,
        client: AsyncOpenAI,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[Delta], None],
    ) -> Reply:
        request: dict[str, Any] = {"model": self.wire_name, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        started = time.monotonic()
        stream = await client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        parts = _Assembly()
        first_token_ms = None
        async for chunk in stream:
            if first_token_ms is None:
                first_token_ms = (time.monotonic() - started) * 1000
            for delta in parts.add(chunk):
                on_delta(delta)
        return parts.reply(first_token_ms)


class _Assembly:
    """Puts the chunks of one streamed reply together."""

    def __init__(self) -> None:
        self.id = ""
        self.text: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finish_reason = "stop"
        self.usage = Usage()

    def add(self, chunk: ChatCompletionChunk) -> list[Delta]:
        self.id = chunk.id or self.id
        if usage := chunk.usage:
            prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
            self.usage = Usage(
                usage.prompt_tokens,
                usage.completion_tokens,
                (prompt and prompt.cached_tokens) or 0,
                (completion and completion.reasoning_tokens) or 0,
            )
        deltas = []
        for choice in chunk.choices[:1]:
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta.content:
                self.text.append(choice.delta.content)
                deltas.append(Delta(text=choice.delta.content))
            for part in choice.delta.tool_calls or ():
                call = self.calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                if function := part.function:
                    call["name"] = function.name or call["name"]
                    call["arguments"] += function.arguments or ""
                    deltas.append(
                        Delta("", call["id"], call["name"], arguments=function.arguments or "")
                    )
        return deltas

    def reply(self, first_token_ms: float | None) -> Reply:
        calls = tuple(
            # Some servers give no ids; the log needs them to pair calls with results.
            ToolCall(
                call["id"] or f"call_{random.getrandbits(80):020x}",  # an id, no secret
                call["name"],
                parse_arguments(call["arguments"]),
            )
            for _, call in sorted(self.calls.items())
        )
        return Reply(
            self.id, "".join(self.text), calls, self.usage, self.finish_reason, first_token_ms
        )


def _error_message(error: APIError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"])
    return error.message


def _backoff_seconds(attempt: int, error: APIError) -> float:
    response = getattr(error, "response", None)
    asked = response.headers.get("retry-after", "") if response is not None else ""
    try:
        return min(float(asked), LONGEST_BACKOFF_SECONDS)
    except ValueError:
        wait = min(0.5 * 2**attempt, LONGEST_BACKOFF_SECONDS)
        return float(wait * random.uniform(0.75, 1.0))  # noqa: S311  # jitter, no secret

"""What a column needs of a payload that is more than a field of it: totals, sizes, costs.

Every function takes decoded values, None where the log does not say, and gives the column's
value. `schema.FIELDS` says which values; content is measured here and goes no further.
"""

import math
import re
from collections import defaultdict
from contextlib import suppress
from typing import Annotated, Any, Final
from zlib import adler32, crc32

import msgspec
from msgspec import Meta, Raw, Struct

Count = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]

# --- totals -------------------------------------------------------------------------------


class _Requests(Struct, frozen=True, gc=False):
    count: Count | None = None
    cost: Amount | None = None


class _Tokens(Struct, frozen=True, gc=False, rename="camel"):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class ModelMetrics(Struct, frozen=True, gc=False, rename="camel"):
    """One model in `modelMetrics`."""

    requests: _Requests = _Requests()
    usage: _Tokens = _Tokens()
    total_nano_aiu: Amount | None = None
    ai_credits_status: str | None = None


class ProviderMetrics(Struct, frozen=True, gc=False, rename="camel"):
    """One model in `providerModelMetrics`, the form that `session.usage_checkpoint` has."""

    model_id: str | None = None
    metrics: ModelMetrics = ModelMetrics()


class AgentMetrics(Struct, frozen=True, gc=False, rename="camel"):
    """One agent in `agentMetrics` (1.0.85): what its models used."""

    model_metrics: dict[str, ModelMetrics] = {}


_Statement = dict[str, Any]


def statements(
    by_model: dict[str, ModelMetrics] | None,
    listed: list[ProviderMetrics] | None,
    by_agent: dict[str, AgentMetrics] | None,
    status: str | None,
) -> list[_Statement] | None:
    """A total as rows of `schema.STATEMENT`: a row per model, and per agent too for the models
    of which the agents' shares add up to the model's.
    """
    if by_model is None and listed is None:
        return None
    pairs = (
        by_model.items()
        if by_model is not None
        else [(p.model_id, p.metrics) for p in listed or ()]
    )
    shares = defaultdict[str, list[_Statement]](list)
    for agent, used in (by_agent or {}).items():
        for name, share in used.model_metrics.items():
            shares[name].append(_statement(agent, name, share, status))
    rows = []
    for model, metrics in pairs:
        total, parts = _statement(None, model, metrics, status), shares.get(model or "", [])
        rows += parts if parts and _add_up(parts, total) else [total]
    return rows


def _statement(
    agent: str | None, model: str | None, metrics: ModelMetrics, status: str | None
) -> _Statement:
    return {
        "agent_id": agent,
        "model": model,
        "requests": metrics.requests.count,
        **msgspec.structs.asdict(metrics.usage),
        "nano_aiu": known(metrics.total_nano_aiu, metrics.ai_credits_status or status),
        "premium_requests": metrics.requests.cost,
    }


def _add_up(parts: list[_Statement], total: _Statement) -> bool:
    return all(
        math.isclose(sum(part[name] or 0 for part in parts), amount or 0)
        for name, amount in total.items()
        if name not in {"agent_id", "model"}
    )


# --- the rest -----------------------------------------------------------------------------


class HookToolCall(Struct, frozen=True, gc=False):
    """One call in the input of a preToolUse hook."""

    id: str | None = None


def known(amount: float | None, status: str | None) -> float | None:
    """Credits; without a GitHub account the CLI writes 0, "unavailable": that is not free."""
    return None if status == "unavailable" else amount


def first(*found: Any) -> Any:  # noqa: ANN401
    """The first that is said."""
    return next((value for value in found if value is not None), None)


def whole(*found: float | None) -> int | None:
    """The first that is said, rounded."""
    value = first(*found)
    return None if value is None else round(value)


def size(raw: Raw) -> int | None:
    """Bytes of JSON; None for a field that is not there."""
    return len(bytes(raw)) or None


def length(items: list[Any] | None) -> int | None:
    """The number of items."""
    return None if items is None else len(items)


def cost(multiplier: float | None, initiator: str | None) -> float | None:
    """Premium requests of a call: `cost` is the model's multiplier, billed once per user
    message, not per iteration.
    """
    return multiplier if multiplier is None or initiator in {None, "user"} else 0.0


def nudge(flag: bool | None, source: str | None, mode: str | None, content: Raw) -> bool:  # noqa: FBT001
    """Whether the CLI wrote the message; before 1.0.65 only its empty content tells."""
    return bool(flag) or source == "autopilot" or (mode == "autopilot" and bytes(content) == b'""')


def hash_arguments(raw: Raw) -> str | None:
    """16 hex digits that are equal when the arguments are; None for no arguments."""
    text = bytes(raw)
    if text[:1] == b'"':  # hooks may hold the arguments' JSON in a string, spaced
        with suppress(msgspec.DecodeError, UnicodeError):
            text = msgspec.json.format(msgspec.json.decode(text, type=str).encode(), indent=-1)
    return f"{crc32(text):08x}{adler32(text):08x}" if text else None


# the quote ends the JSON string: so the output of a command cannot pose as its exit code
_EXIT: Final = re.compile(rb'<(?:exited|(?:shellId: \S+ )?completed) with exit code (-?\d{1,9})>"')


def exit_code(code: int | None, result: Raw) -> int | None:
    """The shell's; before 1.0.85 it is only at the end of the result's text."""
    if code is None and (found := _EXIT.search(bytes(result))):
        return int(found[1])
    return code

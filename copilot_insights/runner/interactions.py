"""How an interaction begins: the prompt, what the hooks make of it, and the user's message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from copilot_insights.runner.hooks import paragraphs
from copilot_insights.runner.log import Mode, iso

if TYPE_CHECKING:
    from copilot_insights.runner.agent import Agent

GO_ON = "Go on."
"""For a hook that sends an agent back to work without a reason."""

Delivery: TypeAlias = Literal["idle", "queued", "steering"]

NUDGE = (
    "The task is not marked as complete: task_complete was not called. If there was only a plan "
    "so far, carry it out now. Do not call task_complete while questions are open, an error is "
    "unresolved or steps are left: decide, find another way, do the steps. Call it when the "
    "whole task is done."
)
"""What the synthetic user message of autopilot says, in our words."""

AUTOPILOT_NOTICE = (
    "<mode_changed_notice>\nAutopilot is on: nobody will answer questions. Decide for yourself, "
    "keep going until the task is done, then call task_complete with a summary.\n"
    "</mode_changed_notice>"
)
INSTRUCTIONS = (
    "You are a coding agent. Use the tools to look before you change, and to check what you "
    "changed. Answer in a few words when nothing is left to do.\n"
    "Current working directory: {cwd}"
)
"""The system prompt; `{cwd}` is filled in."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message for an agent.

    `text` is what the user wrote and the log shows; the model may get more, see
    `open_interaction`. `blocks` counts the agentStop hooks in a row that led to it; `origin` is
    the id of the user's own message behind it, to which the replies go back, if it is not one.
    """

    text: str
    id: str
    agent_mode: Mode | None = None
    delivery: Delivery = "idle"
    source: str | None = None
    blocks: int = 0
    origin: str | None = None

    @property
    def answered(self) -> str:
        """The id of the message that replies go back to."""
        return self.origin or self.id


async def welcome(agent: Agent, prompt: Prompt, session_source: str | None) -> str | None:
    """Run the hooks before a prompt; its text for the model, None if one blocks it.

    `session_source` is `new` or `resume` with the first prompt of a process, else None.
    """
    extra = ""
    if session_source:
        started = {"source": session_source, "initialPrompt": prompt.text}
        output = await agent.run_hooks("sessionStart", started)
        extra = output.get("additionalContext", "")
    output = await agent.run_hooks("userPromptSubmitted", {"prompt": prompt.text})
    if output.get("decision") == "block":
        reason = output.get("reason") or "Blocked by a userPromptSubmitted hook"
        data = {"warningType": "policy_blocked", "message": reason}
        agent.emit("session.warning", data | {"originatingMessageId": prompt.id}, ephemeral=True)
        return None
    text = output.get("modifiedPrompt") or prompt.text
    return paragraphs(text, output.get("additionalContext"), extra)


async def open_interaction(agent: Agent, prompt: Prompt, text: str) -> None:
    """Write the user message of an interaction, and the system prompt where it is new.

    `text` is what the model reads; a date, and a notice after a change of mode, go before it.
    """
    session = agent.session
    agent.interaction_id = session.new_id()
    agent.message_id = prompt.answered
    agent.turn_id, agent.initiator = "0", "user"
    mode = prompt.agent_mode or session.mode
    notice = agent.id is None and mode == "autopilot" and session.told_mode != mode
    if notice:
        text = f"{AUTOPILOT_NOTICE}\n\n{text}"
    output = await agent.run_hooks(
        "userPromptTransformed", {"prompt": text, "transformedPrompt": dated(text)}
    )
    text = output.get("modifiedTransformedPrompt") or dated(text)
    agent.emit("user.message", message_data(agent, prompt, text))
    if notice:
        session.told_mode = mode
        agent.emit("session.mode_notice_delivered", {"mode": mode})
    instructions = session.settings.instructions.replace("{cwd}", str(session.cwd))
    if agent.history.system != instructions:
        agent.emit(
            "system.message",
            {"role": "system", "content": instructions, "interactionId": agent.interaction_id},
        )


def send_back(agent: Agent, reason: str) -> None:
    """Write what a subagentStop hook has its agent do yet, in the same interaction."""
    agent.message_id, agent.turn_id = agent.session.new_id(), "0"
    again = Prompt("", agent.message_id, source="system")
    data = message_data(agent, again, dated(reason))
    del data["delivery"]  # nobody sent it
    agent.emit("user.message", data)


def dated(text: str) -> str:
    """A text for the model, and when it was written."""
    return f"<current_datetime>{iso(datetime.now(UTC))}</current_datetime>\n\n{text}"


def message_data(agent: Agent, prompt: Prompt, text: str) -> dict[str, Any]:
    """The data of `user.message`; `text` is what the model reads."""
    data: dict[str, Any] = {"content": prompt.text, "transformedContent": text}
    if prompt.source:
        data["source"] = prompt.source
    data["messageId"] = prompt.id
    mode = prompt.agent_mode or agent.session.mode
    if agent.id is None and mode != "interactive":
        data["agentMode"] = mode
    if prompt.source == "autopilot":
        data["isAutopilotContinuation"] = True
    return data | {
        "delivery": prompt.delivery,
        "interactionId": agent.interaction_id,
        "turnId": agent.turn_id,
    }

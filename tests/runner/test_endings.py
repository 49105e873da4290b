"""However a prompt ends, and whatever others raise: idle follows, and the next prompt runs."""

import asyncio

import pytest

from copilot_insights.runner.client import CopilotClient
from tests.runner.support import listening, of, types, write_scripts


@pytest.fixture
def server(tmp_path, clean_environment):
    arguments = ["--home", tmp_path / "home", "--script", write_scripts(tmp_path)]
    with listening(clean_environment, "serve", "--port", 0, *arguments) as port:
        yield port


def test_an_abort_straight_after_a_prompt_leads_to_idle(play):
    async def then(session):
        session.send("[[script:hello]] never")
        await session.abort()
        assert not session.worker.busy
        assert await session.send_and_wait("[[script:hello]] after", 10) == "Hello there, done."

    session, seen = play(then=then)
    assert [data.get("aborted") for data in of("session.idle", seen)] == [True, None]
    texts = [data["content"] for data in of("user.message", session.log.events)]
    assert texts == ["[[script:hello]] after"]


def test_a_prompt_that_comes_while_an_abort_is_under_way_runs(play):
    async def then(session):
        started = asyncio.Event()
        session.on(lambda e: started.set() if e["type"] == "tool.execution_start" else None)
        session.send("[[script:slow]] go")
        await started.wait()
        aborting = asyncio.create_task(session.abort())
        session.on(lambda e: e["type"] == "abort" and session.send("[[script:hello]] after"))
        await aborting
        await session.worker.finish()

    session, seen = play(then=then)
    texts = [data["content"] for data in of("user.message", session.log.events)]
    assert texts == ["[[script:slow]] go", "[[script:hello]] after"]
    assert [data.get("aborted") for data in of("session.idle", seen)] == [True, None]


@pytest.mark.parametrize("kind", ["assistant.idle", "session.idle"])
def test_a_prompt_sent_when_idle_is_said_runs(play, kind):
    async def then(session):
        def once_more(event):
            if event["type"] == kind:
                stop()
                session.send("[[script:hello]] again")

        stop = session.on(once_more)
        session.send("[[script:hello]] go")
        await session.worker.finish()

    session, seen = play(then=then)
    assert len(of("user.message", session.log.events)) == 2
    assert types(seen)[-2:] == ["session.idle", "session.shutdown"]


def test_a_client_that_sends_when_idle_is_said_is_answered(server, shop):
    async def main():
        async with CopilotClient(port=server) as client:
            session = await client.create_session(working_directory=shop)
            sending, twice = [], asyncio.Event()

            def once_more(event):
                if event["type"] == "session.idle":
                    if sending:
                        twice.set()
                    else:
                        sending.append(asyncio.create_task(session.send("[[script:hello]] again")))

            session.on(once_more)
            await session.send("[[script:hello]] go")
            await asyncio.wait_for(twice.wait(), 20)
            return await session.get_events()

    assert len(of("user.message", asyncio.run(main()))) == 2

"""Agents as people write them, one for each framework: each asks the questions in one conversation, with one tool, and returns
the final texts. None of them knows that it is trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

SYSTEM = "You compute with the tool."
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}


def add(a: int, b: int) -> str:
    """Adds two whole numbers."""
    return str(a + b)


def call(name: str, arguments: dict[str, Any]) -> str:
    """What plain loops answer a call with."""
    try:
        return {"add": add}[name](**arguments)
    except (KeyError, TypeError) as error:
        return f"error: {error}"


def openai_client(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from openai import OpenAI

    openai = OpenAI(base_url=client.base_url, api_key=client.api_key)
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    asked: dict[str, Any] = {"model": client.model, "messages": messages}
    asked["tools"] = [{"type": "function", "function": function}]

    def answer() -> Any:
        if not stream:
            return openai.chat.completions.create(**asked).choices[0].message
        with openai.chat.completions.stream(**asked) as events:
            return events.get_final_completion().choices[0].message

    return _loop(messages, questions, answer, lambda message: message)


def litellm_openai(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    return _litellm(client, questions, stream, model=f"openai/{client.model}", api_base=client.base_url)


def litellm_anthropic(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    return _litellm(client, questions, stream, model=f"anthropic/{client.model}", api_base=client.anthropic_base_url)


def _litellm(client: Any, questions: Sequence[str], stream: bool, **where: Any) -> list[str]:
    import litellm

    litellm.suppress_debug_info = True
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    tools = [{"type": "function", "function": function}]

    def answer() -> Any:
        found = litellm.completion(
            messages=messages, tools=tools, stream=stream, api_key=client.api_key, max_tokens=500, **where
        )
        found = litellm.stream_chunk_builder(list(found), messages=messages) if stream else found
        return found.choices[0].message

    return _loop(messages, questions, answer, lambda message: message.model_dump())


def _loop(
    messages: list[Any], questions: Sequence[str], answer: Callable[[], Any], as_sent: Callable[[Any], Any]
) -> list[str]:
    said = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while (message := answer()).tool_calls:
            messages.append(as_sent(message))
            for each in message.tool_calls:
                result = call(each.function.name, json.loads(each.function.arguments))
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
        messages.append(as_sent(message))
        said.append(message.content)
    return said


def anthropic_client(client: Any, questions: Sequence[str], stream: bool, **options: Any) -> list[str]:
    from anthropic import Anthropic

    anthropic = Anthropic(base_url=client.anthropic_base_url, api_key=client.api_key)
    messages: list[Any] = []
    asked = {"model": client.model, "max_tokens": 500, "system": SYSTEM, "messages": messages, **options}
    asked["tools"] = [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}]

    def answer() -> Any:
        if not stream:
            return anthropic.messages.create(**asked)
        with anthropic.messages.stream(**asked) as events:
            return events.get_final_message()

    said = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while (message := answer()).stop_reason == "tool_use":
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [{"tool_use_id": each.id, "content": call(each.name, each.input)} for each in calls]
            messages.append({"role": "user", "content": [{"type": "tool_result", **each} for each in results]})
        messages.append({"role": "assistant", "content": message.content})
        said.append("".join(block.text for block in message.content if block.type == "text"))
    return said


def anthropic_thinking(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    return anthropic_client(client, questions, stream, thinking={"type": "adaptive"})


def anthropic_tool_runner(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from anthropic import Anthropic, beta_tool

    anthropic = Anthropic(base_url=client.anthropic_base_url, api_key=client.api_key)
    messages: list[Any] = []
    said = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        runner = anthropic.beta.messages.tool_runner(
            model=client.model,
            max_tokens=500,
            system=SYSTEM,
            tools=[beta_tool(add)],
            messages=list(messages),
            stream=stream,
        )
        for each in runner:
            message = each.get_final_message() if stream else each
            results = runner.generate_tool_call_response()
            messages += [{"role": "assistant", "content": message.content}, *([results] if results else [])]
        said.append("".join(block.text for block in message.content if block.type == "text"))
    return said


def openai_agents(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(client.model, AsyncOpenAI(base_url=client.base_url, api_key=client.api_key))
    agent = Agent("calculator", instructions=SYSTEM, tools=[function_tool(add)], model=model)

    async def run() -> list[str]:
        said, items = [], []
        for question in questions:
            items.append({"role": "user", "content": question})
            if stream:
                result = Runner.run_streamed(agent, items)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, items)
            items = result.to_input_list()
            said.append(result.final_output)
        return said

    return asyncio.run(run())


def langgraph_openai(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=client.model, base_url=client.base_url, api_key=client.api_key)
    return _langgraph(model, questions, stream)


def langgraph_anthropic(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model=client.model, base_url=client.anthropic_base_url, api_key=client.api_key)
    return _langgraph(model, questions, stream)


def _langgraph(model: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    agent = create_agent(model, [tool(add)], system_prompt=SYSTEM)
    state: dict[str, Any] = {"messages": []}
    said = []
    for question in questions:
        asked = {"messages": [*state["messages"], ("user", question)]}
        if stream:
            parts = list(agent.stream(asked, stream_mode=["messages", "values"]))
            state = [part for mode, part in parts if mode == "values"][-1]
        else:
            state = agent.invoke(asked)
        said.append(state["messages"][-1].text)
    return said


def pydantic_ai_openai(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=client.base_url, api_key=client.api_key)
    return _pydantic_ai(OpenAIChatModel(client.model, provider=provider), questions, stream)


def pydantic_ai_anthropic(client: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=client.anthropic_base_url, api_key=client.api_key)
    return _pydantic_ai(AnthropicModel(client.model, provider=provider), questions, stream)


def _pydantic_ai(model: Any, questions: Sequence[str], stream: bool) -> list[str]:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=SYSTEM, tools=[add], retries=3)

    async def read(_: Any, events: Any) -> None:
        async for _ in events:
            pass

    async def run() -> list[str]:
        said, history = [], None
        for question in questions:
            result = await agent.run(question, message_history=history, event_stream_handler=read if stream else None)
            history = result.all_messages()
            said.append(result.output)
        return said

    return asyncio.run(run())


PROGRAMS = (
    openai_client,
    anthropic_client,
    anthropic_thinking,
    anthropic_tool_runner,
    openai_agents,
    langgraph_openai,
    langgraph_anthropic,
    pydantic_ai_openai,
    pydantic_ai_anthropic,
    litellm_openai,
    litellm_anthropic,
)

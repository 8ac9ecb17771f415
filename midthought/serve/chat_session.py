"""A conversation with a policy, turn by turn. Does not depend on the terminal."""

from __future__ import annotations

import dataclasses
import random

from midthought.engines.generation import BaseInferenceEngine
from midthought.serve.answer_stream import OnPiece
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization.chat_template import Message


class ChatSession:
    """A conversation that grows with every question. `temperature`, `max_tokens` None: the policy's own settings. The n-th
    answer is sampled with `seed` + n; None: a random seed."""

    def __init__(
        self,
        engine: BaseInferenceEngine,
        policy: ChatPolicy,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self._engine, self._policy = engine, policy
        self._answers = ChatAnswers(policy)
        self._temperature, self._max_tokens = temperature, max_tokens
        self._seed = random.SystemRandom().randrange(2**31) if seed is None else seed

    def ask(self, question: str, on_piece: OnPiece) -> ChatAnswer:
        """Returns the answer; `on_piece` gets its text as it arrives, in another thread. An answer that is interrupted or fails
        leaves the conversation as it was. Raises as `ChatAnswers.answer`."""
        messages: list[Message] = [*self.messages, {"role": "user", "content": question}]
        sampling = {} if self._temperature is None else {"temperature": self._temperature}
        request = ChatRequest(messages=messages, seed=self._seed, max_tokens=self._max_tokens, sampling=sampling)
        answer = self._engine.run(self._answers.answer(request, on_piece))
        self._seed += 1
        self.messages = [*messages, {"role": "assistant", "content": answer.content}]
        return answer

    def reset(self) -> None:
        """Starts a new conversation."""
        self.messages = []

    @property
    def system_prompt(self) -> str:
        """The system prompt, without descriptions of tools. Setting it starts a new conversation."""
        return self._policy.system_prompt

    @system_prompt.setter
    def system_prompt(self, text: str) -> None:
        self._policy = dataclasses.replace(self._policy, system_prompt=text)
        self._answers = ChatAnswers(self._policy)
        self.reset()

    def tool_lines(self) -> list[str]:
        """Returns a line for each tool: its name, parameters and purpose."""
        definitions = self._policy.executor.registry.definitions()
        return [
            f"{tool.name}({', '.join(parameter.name for parameter in tool.parameters)}): {tool.description}"
            for tool in definitions
        ]

"""Reads the conversations that `midthought feedback convert` wrote. Does not depend on problems, critics or tokens."""

from __future__ import annotations

from pathlib import Path

from midthought.data.rows import rows_of
from midthought.errors import DataError
from midthought.rollout.openai_messages import check_message
from midthought.tokenization.chat_template import Message


def read_conversations(path: str | Path) -> list[list[Message]]:
    """Returns all conversations of a Parquet file, without system messages: the recipe has its own. Raises `DataError` with the
    row if one cannot be read."""
    read = []
    for row in rows_of(Path(path)):
        if row.problem is not None:
            raise DataError(f"{row.where}: {row.problem}")
        try:
            said = [message for message in row.value["messages"] if message["role"] != "system"]
            for number, message in enumerate(said):
                check_message(number, message)
            first, *rest = map(_without_gaps, said)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{row.where}: no conversation as `midthought feedback convert` writes them ({type(error).__name__}: {error})"
            ) from None
        read.append([first, *rest])
    if not read:
        raise DataError(f"{path} holds no conversation; write it with `midthought feedback convert`")
    return read


def _without_gaps(message: Message) -> Message:
    """Returns the message without arguments that are empty: in a column of Parquet, every call has the arguments of all."""
    calls = message.get("tool_calls")
    if calls is None:
        return {"role": message["role"], "content": message["content"]}
    functions = [call["function"] for call in calls]
    kept = [{key: value for key, value in each["arguments"].items() if value} for each in functions]
    named = [{"name": each["name"], "arguments": arguments} for each, arguments in zip(functions, kept, strict=True)]
    return {**message, "tool_calls": [{"type": "function", "function": function} for function in named]}

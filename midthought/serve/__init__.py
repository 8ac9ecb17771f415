"""A trained policy behind an OpenAI-compatible HTTP endpoint. Conversations: `midthought.serve.chat_answer`."""

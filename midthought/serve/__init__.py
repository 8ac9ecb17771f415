"""A trained policy behind an OpenAI-compatible HTTP endpoint. Conversations: `midthought.rollout.chat_answer`."""

"""The tests of this folder ask servers over HTTP whose engines are scripted."""

from support.served import scripted_server, served, tokenizer
from support.tool_chats import chat, chats, marked

__all__ = ["chat", "chats", "marked", "scripted_server", "served", "tokenizer"]

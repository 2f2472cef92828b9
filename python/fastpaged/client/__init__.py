"""Clients of OpenAI-compatible servers, ours and others': one that talks, and one that measures."""

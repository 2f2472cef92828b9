"""The engine: one step at a time, from requests to outputs."""

"""Recordings of a scheduler, followed, replayed and asked what would have been. No model is needed for any of it."""

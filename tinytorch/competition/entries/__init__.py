"""Entries: reading, writing and checking what a team hands in. It is data; nothing of it is run."""

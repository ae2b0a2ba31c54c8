"""Boards: standings, innovation and records, made of kept runs alone."""

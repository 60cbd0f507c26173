"""Whoever can speak."""

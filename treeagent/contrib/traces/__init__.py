"""Traces and transcripts of other agents."""

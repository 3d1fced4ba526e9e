"""Sections of run.py; docs/gpu.md explains each figure."""

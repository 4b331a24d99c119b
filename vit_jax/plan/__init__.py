"""Estimates a run's memory and step time for any devices, present or not, by compiling its step."""

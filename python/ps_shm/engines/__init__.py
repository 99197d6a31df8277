"""Weights for inference engines: adapters that let an engine take a publication's generations.

vllm    a backend of vLLM's weight transfer, and its trainer's side
http    tells engines of other processes, over HTTP, that there is a generation to take

Nothing here imports an engine before it is called.
"""

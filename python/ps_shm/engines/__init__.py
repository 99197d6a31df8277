"""Weights for inference engines: adapters that let an engine take a publication's generations.

vllm       a backend of vLLM's weight transfer, and its trainer's side
sglang     a weight loader for SGLang
torchrl    a weight-sync scheme for TorchRL
trl        a client of vLLM servers for TRL's trainers, which imports TRL
verl       a checkpoint engine for verl, which imports it
http       tells servers of vLLM and SGLang, over HTTP, that there is a generation to take

Nothing here imports an engine before it is called, except for `trl` and `verl`.
"""

"""The LLM tensor contract that every Uzu backend serves and the gateway speaks.

`tensors` is the one table of names, types and shapes; `request`, `sampling` and `response` are the typed
values on either side of it; `errors` the codes; `metrics` the names of what a backend reports. Nothing here
imports Triton, so the same code runs in the backend's stub, in the gateway and in tests.
"""

"""The native engine: continuous batching over a paged KV cache on OpenVINO, with reproducible tokens.

State (`sequence`, `block_pool`), decision (`scheduler`, `sampler`) and execution (`executor`,
`openvino_executor`) are apart; `engine` is the loop that joins them and `triton_adapter` the only module
that knows Triton.
"""

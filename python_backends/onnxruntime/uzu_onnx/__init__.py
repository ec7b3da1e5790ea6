"""Triton's `onnxruntime` backend in Python, for installations without the one in C++.

It reads the same config.pbtxt (https://github.com/triton-inference-server/onnxruntime_backend) and batches as
Triton's dynamic batcher tells it to: one run of the model for all requests of a batch.
"""

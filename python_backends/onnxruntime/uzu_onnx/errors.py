"""Errors of the ONNX Runtime backend."""


class ConfigError(ValueError):
    """The model's configuration cannot be served as it is; the text names the field and how to mend it."""

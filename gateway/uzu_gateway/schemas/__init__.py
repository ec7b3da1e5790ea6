"""Bodies of requests, hand-written: exactly what is supported, what is refused by name, what is ignored."""

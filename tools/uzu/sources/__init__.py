"""Where models come from: what `--model` may name, and how each kind becomes a prepared folder."""

"""What answers requests: the port, its adapters, and the codec between OpenAI's shapes and the contract."""

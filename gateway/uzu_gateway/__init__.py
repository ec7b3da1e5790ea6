"""The OpenAI-compatible HTTP gateway in front of Triton.

`app.create_app` joins the parts: `middleware` (pure ASGI) around `api` (one router per resource), which
parses bodies into `schemas`, turns them into requests of the LLM contract (`engine.codec`) and runs them on
an engine behind `engine.port`. Every refusal is made from the one table in `errors`.
"""

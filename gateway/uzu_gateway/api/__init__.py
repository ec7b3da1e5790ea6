"""The routes: one small router per resource."""

"""Drafts: guesses at a request's next tokens, which the model verifies in one step."""

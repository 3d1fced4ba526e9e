"""Counts of tokens, as replies report them."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.outputs import RequestOutput


@dataclass(slots=True)
class UsageCounter:
    """Adds up what the prompts and choices of one HTTP request used, in tokens.

    `with_details` reports cached tokens, `with_reasoning` those of the reasoning's text.
    """

    with_details: bool
    with_reasoning: bool = False
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0

    def add_prompt(self, output: RequestOutput) -> None:
        """Count a prompt, once, at its first output."""
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_cached_tokens += output.num_cached_tokens or 0

    def brief(self) -> dict[str, object]:
        """The three sums, for a chunk of a stream."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "completion_tokens": self.num_completion_tokens,
        }

    def final(self) -> dict[str, object]:
        """The sums, and details where the server reports them: the last word of a stream."""
        usage = self.brief()
        if self.with_details:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached_tokens}
        if self.with_reasoning:
            usage["completion_tokens_details"] = self._reasoning()
        return usage

    def full(self) -> dict[str, object]:
        """The sums with every key, for a reply that is not streamed."""
        usage = self.brief()
        usage["prompt_tokens_details"] = None
        if self.with_details:
            usage["prompt_tokens_details"] = {
                "cached_tokens": self.num_cached_tokens,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            }
        usage["completion_tokens_details"] = self._reasoning() if self.with_reasoning else None
        return usage

    def _reasoning(self) -> dict[str, int]:
        # Counted from text, so that it can never exceed what was generated.
        return {"reasoning_tokens": min(self.num_reasoning_tokens, self.num_completion_tokens)}

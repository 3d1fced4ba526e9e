"""Interface of what guesses a request's next tokens from texts, and the choice of one.

Drafts change how many tokens a step yields, never which: a draft is accepted where the request
samples that very token. So a drafter proposes what is likeliest, and knows no sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from vllm_lite.spec_decode.ngram import NgramDrafter
from vllm_lite.spec_decode.suffix import SuffixDrafter

if TYPE_CHECKING:
    from vllm_lite.config.speculative import SpeculativeConfig

Int32s = npt.NDArray[np.int32]


class Drafter(Protocol):
    """Guesses tokens of any number of requests."""

    def propose(self, token_ids: Int32s, most: int, scope: str) -> Int32s:
        """Up to `most` tokens that may follow a request's `token_ids` [L].

        `scope`: whose earlier texts may be looked at.
        """

    def remember(self, token_ids: Int32s, scope: str) -> None:
        """Take note of the `token_ids` [L] that a request of `scope` generated."""


def make_drafter(config: SpeculativeConfig) -> Drafter | None:
    """The drafter of `config` that reads texts; None for other methods, and without any."""
    if not config.num_drafts or not config.reads_texts:
        return None
    if config.method == "suffix":
        return SuffixDrafter(
            longest_match=config.suffix_decoding_max_tree_depth,
            num_texts=config.suffix_decoding_max_cached_requests,
            drafts_per_match=config.suffix_decoding_max_spec_factor,
            least_probability=config.suffix_decoding_min_token_prob,
        )
    return NgramDrafter(*config.lookup)

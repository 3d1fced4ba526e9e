"""What the engine core reports about itself: plain data that travels with its outputs.

Knows no metrics library. Counters are totals since the start, so that a report may be
skipped without losing anything; the reader takes differences.
"""

from __future__ import annotations

import msgspec


class SchedulerStats(msgspec.Struct, omit_defaults=True):
    """State of the scheduler and its KV cache after a step.

    Blocks: free + cached + used = total, where `cached` are unused blocks whose content can
    still be hit, and the null block counts nowhere.
    """

    num_running: int = 0
    num_waiting: int = 0
    # Share of the blocks that requests hold, 0 to 1.
    kv_cache_usage: float = 0.0
    # Totals since the start, in tokens; a request counts once, when it is first admitted.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_total_blocks: int = 0

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_total_blocks - self.num_free_blocks - self.num_cached_blocks

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of the looked-up tokens that the prefix cache gave, 0 to 1."""
        queries = self.prefix_cache_queries
        return self.prefix_cache_hits / queries if queries else 0.0

"""The families by group, each with the cases that are compared with transformers."""

from tests.models.families import classics, experts, llama, qwen_phi_gemma, states

GROUPS = (llama, qwen_phi_gemma, classics, experts, states)
FAMILIES = {name: family for group in GROUPS for name, family in group.FAMILIES.items()}
CASES = {
    f"{name}-{case}".removesuffix("-"): (name, changes)
    for name, family in FAMILIES.items()
    for case, changes in family.cases.items()
}
# Ranks cannot share them: they normalise all heads, or all hidden features, as one row.
UNDIVIDED = (
    "bitnet",
    "flex_olmo",
    "minimax",
    "minimax_m2",
    "minimax_text_01",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
)

"""The config of the theorems' transformers, which needs no model class."""

from transformers import AutoConfig, MptConfig

from mesa.families import CONSTRUCTED


class ConstructedConfig(MptConfig):
    """MPT's config with sizes of heads and MLP of its own; `slope` is every head's, 0 for a model without positions."""

    model_type = CONSTRUCTED
    slope: float = 1.0
    head_dim: int = 4
    intermediate_size: int = 1
    tie_word_embeddings: bool = False


AutoConfig.register(CONSTRUCTED, ConstructedConfig)

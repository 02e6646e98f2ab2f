"""A tokenizer of SentencePiece's kind, which puts a space before whatever it is given."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from probe.eval_tasks.retrieval import LINES_HEADER, PASSKEY_FILLER, PASSKEY_HEADER

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: ▁ for a space, one more before the text, characters that are not in the vocabulary as bytes."""
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    text = [PASSKEY_HEADER, LINES_HEADER, "".join(PASSKEY_FILLER), "0 1 2 3 4 5 6 7 8 9 a"]
    spaced = [line.replace(" ", "▁") for line in text]
    inner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False)
    inner.train_from_iterator(spaced * 3, trainer)
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", add_bos_token=True
    )

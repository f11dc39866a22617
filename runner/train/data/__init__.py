"""Text to global batches: documents, tokenizer, packing, and which sequences belong to which step."""

"""Dead letters (KIP-1191): what a dead-letter topic holds, compared with what the state logs show.

`archiving` collects the ranges of offsets that enter and leave ARCHIVING while a log is folded; `matching`
matches dead letters with them. share_state.kafka.dead_letter_headers decodes a letter,
share_state.sources.dead_letter_topics reads the topics, share_state.pipeline.dead_letter_checks judges them
by share_state.rules.dead_letter_losses.
"""

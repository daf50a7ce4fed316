"""Batch sizes of a language model.

gpt             batches of a language model: ours, goodput, tuned sizes and the paper's space (rehearsed)
critical_batch  the critical batch size of a language model by branching, beside our noise scale

gpt_cells       the training, contenders and questions of `gpt`
gpt_page        its page
"""

"""Training from what trees teach: supervised fine-tuning, DPO, GRPO and the fit of a value head.

Each learner takes the rows of one view of ``treeagent.views`` and changes a model in place:

    sft.train_sft(model, tokenizer, imitation rows, SFTConfig())
    dpo.train_dpo(model, tokenizer, preference pairs, DPOConfig())
    grpo.train_grpo(model, tokenizer, advantage rows, GRPOConfig())
    value.fit_value(model, head, value rows, ValueConfig())

The settings, in ``config``, import no torch; the learners import torch and TRL.
"""

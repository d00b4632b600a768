"""Training on the rows of trees: supervised fine-tuning, policy distillation, DPO, GRPO, value heads.

Each learner takes the rows of one view of ``treeagent.views``, or a ``datasets.Dataset`` with their fields as columns,
and changes a model in place: ``sft.train_sft``, ``sft.train_distil``, ``dpo.train_dpo``, ``grpo.train_grpo``,
``value.fit_value``. ``packed.pack_prefixes(model)`` makes any trainer compute the common prefixes of a batch once.
"""

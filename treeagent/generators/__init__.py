"""Language models that sample: prompts and samples as token ids, with the log-probability of every sampled token.

``local.LocalGenerator`` runs a transformers model in this process, ``vllm.VllmGenerator`` a vLLM engine, and
``remote.RemoteGenerator`` uses a server; all three take a ``base.SampleRequest``. ``chat.ChatFormat`` turns
conversations into prompts, and a ``grammar.Grammar`` turns the text of a sample into an action.
"""
